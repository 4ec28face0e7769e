-- What JSON is, what it is not, and which Lua values have a JSON form.
-- Memory that runs out and locales: tests/core/test_json.c.

local json = require("berth.core").json

local function is_array(value)
  return getmetatable(value) == json.array_mt
end

-- `name` is what busted shows: bytes that no terminal likes are escaped.
local function shown(text)
  text = #text > 40 and text:sub(1, 40) .. "..." or text
  return (
    text:gsub("[^\x20-\x7e]", function(byte)
      return ("\\x%02x"):format(byte:byte())
    end)
  )
end

local function assert_same_number(expected, got)
  assert.are.equal(math.type(expected), math.type(got))
  assert.are.equal(("%q"):format(expected), ("%q"):format(got)) -- %q tells -0.0 from 0.0
end

describe("json.decode", function()
  describe("takes the scalar", function()
    for text, expected in pairs {
      ["true"] = true,
      ["false"] = false,
      [" \t\r\n1\n\r\t "] = 1,
      ['""'] = "",
      ['"a b"'] = "a b",
      ['"\\"\\\\\\/\\b\\f\\n\\r\\t"'] = '"\\/\b\f\n\r\t',
      ['"/"'] = "/",
      ['"\\u0000"'] = "\0",
      ['"a\\u0000b"'] = "a\0b",
      ['"\\u0041\\u00e9\\u20ac"'] = "A\u{e9}\u{20ac}",
      ['"\\u00E9\\uABCD\\uabcd"'] = "\u{e9}\u{abcd}\u{abcd}",
      ['"\\ud83d\\ude00"'] = "\u{1f600}",
      ['"\\uD800\\uDC00\\uDBFF\\uDFFF"'] = "\u{10000}\u{10ffff}",
      ['"\\ud7ff\\ue000\\uffff\\ufffe"'] = "\u{d7ff}\u{e000}\u{ffff}\u{fffe}",
      ['"\\\\ud800"'] = "\\ud800",
      ['"\\\\\\ud83d\\ude00"'] = "\\\u{1f600}",
      ['"\x7f"'] = "\x7f",
      ['"\u{e9}\u{20ac}\u{1f600}"'] = "\u{e9}\u{20ac}\u{1f600}",
      ['"\u{80}\u{7ff}\u{800}\u{d7ff}\u{e000}\u{ffff}\u{10000}\u{10ffff}"'] = "\u{80}\u{7ff}\u{800}"
        .. "\u{d7ff}\u{e000}\u{ffff}\u{10000}\u{10ffff}",
      ['"\u{2028}\u{2029}\u{feff}"'] = "\u{2028}\u{2029}\u{feff}",
    } do
      it(shown(text), function()
        assert.are.equal(expected, json.decode(text))
      end)
    end
  end)

  describe("takes the number", function()
    for text, expected in pairs {
      ["0"] = 0,
      ["-1"] = -1,
      ["9223372036854775807"] = math.maxinteger,
      ["-9223372036854775808"] = math.mininteger,
      ["9223372036854775808"] = 2.0 ^ 63,
      ["-9223372036854775809"] = -2.0 ^ 63,
      ["18446744073709551616"] = 2.0 ^ 64,
      ["100000000000000000000"] = 1e20,
      ["-0"] = -0.0,
      ["0.0"] = 0.0,
      ["-0.0"] = -0.0,
      ["1.0"] = 1.0,
      ["1e3"] = 1000.0,
      ["1E+3"] = 1000.0,
      ["0e0"] = 0.0,
      ["0E-10"] = 0.0,
      ["-1.5e-3"] = -0.0015,
      ["1e-400"] = 0.0,
      ["5e-324"] = 5e-324,
      ["1.7976931348623157e308"] = 1.7976931348623157e308,
      ["0.1"] = 0.1,
      ["123456789012345678901234567890"] = 123456789012345678901234567890.0,
      [("9"):rep(300)] = 1e300,
      ["1." .. ("0"):rep(500) .. "1"] = 1.0,
      ["0." .. ("0"):rep(100) .. "1e101"] = 1.0,
    } do
      it(shown(text), function()
        assert_same_number(expected, json.decode(text))
        assert_same_number(expected, json.decode("[" .. text .. "]")[1])
        assert_same_number(expected, json.decode('{"a":' .. text .. "}").a)
      end)
    end
  end)

  it("builds tables, and marks every array", function()
    local value = json.decode '{"a":[1,{"b":[]},[true,[]]],"":{},"c":null}'
    assert.are.same({ 1, { b = {} }, { true, {} } }, value.a)
    assert.is_true(is_array(value.a) and is_array(value.a[2].b) and is_array(value.a[3][2]))
    assert.is_nil(getmetatable(value))
    assert.is_nil(getmetatable(value[""]))
    assert.are.equal(json.null, value.c)
  end)

  it("gives null a value of its own, at the top and inside", function()
    assert.are.equal(json.null, json.decode "null")
    local list = json.decode "[null,1,null]"
    assert.are.equal(3, #list)
    assert.are.equal(json.null, list[3])
    assert.are.equal("null", tostring(json.null))
  end)

  it("lets the last of two members win", function()
    assert.are.same({ a = 3, b = 2 }, json.decode '{"a":1,"b":2,"\\u0061":3}')
    assert.are.equal(json.null, json.decode('{"a":1,"a":null}').a)
  end)

  it("takes names that hold anything a string can", function()
    assert.are.same(
      { ["\0"] = 1, ["\n\u{1f600}"] = 2 },
      json.decode '{"\\u0000":1,"\\n\\ud83d\\ude00":2}'
    )
  end)

  describe("refuses, with the byte at fault,", function()
    local long = ("x"):rep(5000)
    for text, byte in pairs {
      -- nothing, or cut short
      [""] = 1,
      [" "] = 2,
      ["["] = 2,
      ["[1"] = 3,
      ["[1,"] = 4,
      ["{"] = 2,
      ['{"a"'] = 5,
      ['{"a":'] = 6,
      ['{"a":1'] = 7,
      ['{"a":1,'] = 8,
      ['"'] = 2,
      ['"a'] = 3,
      ['"' .. long] = 5002,
      ['"a\\'] = 4,
      ['"\\u00'] = 6,
      ["tru"] = 4,
      ["-"] = 2,
      ["1."] = 3,
      ["1e"] = 3,
      ["1e+"] = 4,
      -- no value
      ["]"] = 1,
      ["}"] = 1,
      [","] = 1,
      [":"] = 1,
      ["x"] = 1,
      ["True"] = 1,
      ["nulL"] = 4,
      ["'a'"] = 1,
      ["NaN"] = 1,
      ["nan"] = 2,
      ["Infinity"] = 1,
      ["-Infinity"] = 2,
      ["[-NaN]"] = 3,
      ["undefined"] = 1,
      ["\0"] = 1,
      ["\u{feff}1"] = 1,
      ["\u{a0}1"] = 1,
      -- numbers
      ["+1"] = 1,
      [".5"] = 1,
      ["[01]"] = 3,
      ["01"] = 2,
      ["-01"] = 3,
      ["[1.]"] = 4,
      ["[1.e1]"] = 4,
      ["[1e]"] = 4,
      ["[1e+]"] = 5,
      ["[--1]"] = 3,
      ["0x10"] = 2,
      ["1_000"] = 2,
      ["1e5.5"] = 4,
      ["1,5"] = 2,
      ["[1 000]"] = 4,
      ["[1 234]"] = 4,
      -- structure
      ["[1,]"] = 4,
      ["[,1]"] = 2,
      ["[1,,2]"] = 4,
      ["[1:2]"] = 3,
      ["[1}"] = 3,
      ["{]"] = 2,
      ['{"a":1,}'] = 8,
      ['{"a":1 "b":2}'] = 8,
      ['{"a":[] "":2}'] = 9,
      ['["a" "b"]'] = 6,
      ['{"a",1}'] = 5,
      ['{"a"}'] = 5,
      ['{"a"::1}'] = 6,
      ["{1:2}"] = 2,
      ["{a:1}"] = 2,
      ["{null:1}"] = 5,
      -- behind the value
      ["1 2"] = 3,
      ["[]]"] = 3,
      ["{}{}"] = 3,
      ['1 "abc'] = 3,
      ['[1] "'] = 5,
      ["[1],"] = 4,
      ["1\0"] = 2,
      ["[1] \n x"] = 7,
      ["null tru"] = 6,
      ["true-"] = 5,
      -- no comments
      ["/**/1"] = 1,
      ["// x\n1"] = 1,
      ["[1/**/]"] = 3,
      ["1 //"] = 3,
      ["# x\n1"] = 1,
      -- white space that is none
      ["\v1"] = 1,
      ["[1,\f2]"] = 4,
      -- strings
      ['"\n"'] = 2,
      ['"a\tb"'] = 3,
      ['"\0"'] = 2,
      ['"\x1f"'] = 2,
      ['"\v"'] = 2,
      ['"\\a"'] = 3,
      ['"\\x41"'] = 3,
      ['"\\\'"'] = 3,
      ['"\\U0041"'] = 3,
      ['"\\u00g0"'] = 6,
      ['"\\u004"'] = 7,
      ['"\\u{41}"'] = 4,
      -- surrogates
      ['"\\ud800"'] = 2,
      ['"a\\udc00"'] = 3,
      ['"\\ud800\\ud800"'] = 2,
      ['"\\ud800x\\udc00"'] = 2,
      ['"\\ud800\\u0041"'] = 2,
      ['"\\ud800\\n"'] = 2,
      ['"\\ud83d\\ude00\\ude00"'] = 14,
      ['"\\\\\\udfff"'] = 4,
      ['"\\uDBFF'] = 2,
      ['"\\ud800\\udc0'] = 2,
      ['{"\\ud800":1}'] = 3,
      -- UTF-8
      ['"\x80"'] = 2,
      ['"\xbf"'] = 2,
      ['"\xc0\x80"'] = 2,
      ['"\xc1\xbf"'] = 2,
      ['"a\xc3"'] = 3,
      ['"\xc3\x28"'] = 2,
      ['"\xe0\x80\x80"'] = 2,
      ['"\xe0\x9f\xbf"'] = 2,
      ['"\xe2\x82"'] = 2,
      ['"\xe2\x28\xa1"'] = 2,
      ['"\xe2\x82\x28"'] = 2,
      ['"\xed\xa0\x80"'] = 2,
      ['"\xed\xbf\xbf"'] = 2,
      ['"\xf0\x80\x80\x80"'] = 2,
      ['"\xf0\x8f\xbf\xbf"'] = 2,
      ['"\xf0\x9f\x98"'] = 2,
      ['"\xf0\x9f\x98\x28"'] = 2,
      ['"\xf4\x90\x80\x80"'] = 2,
      ['"\xf5\x80\x80\x80"'] = 2,
      ['"\xf8\x88\x80\x80\x80"'] = 2,
      ['"\xfe"'] = 2,
      ['"\xff"'] = 2,
      ['"abcdefghijklmnop\u{e9}\u{20ac}\xff"'] = 23,
      ['{"\xff":1}'] = 3,
      ['["a"]\xff'] = 6,
    } do
      it(shown(text), function()
        local value, message = json.decode(text)
        assert.is_nil(value)
        assert.are.equal(byte, math.tointeger(message:match "^not JSON at byte (%d+): [^\n]+$"))
      end)
    end
  end)

  it("refuses every text cut short, and never reads behind it", function()
    local text = '{"a":[1,-2.5e3,"x\\n\\ud83d\\ude00",true,false,null,{}]}'
    assert.is_table(json.decode(text))
    for length = 0, #text - 1 do
      local value, message = json.decode(text:sub(1, length))
      assert.is_nil(value, text:sub(1, length))
      assert.matches("^not JSON at byte %d+: ", message)
    end
  end)

  it("refuses a number that is too large for a float", function()
    for text, byte in pairs { ["1e309"] = 5, ["[-1e400]"] = 7, [("9"):rep(400)] = 400 } do
      local value, message = json.decode(text)
      assert.is_nil(value)
      assert.are.equal("number too large for a float at byte " .. byte, message)
    end
  end)

  it("says plainly what was wrong", function()
    local function message_for(text)
      return select(2, json.decode(text))
    end
    assert.are.equal("not JSON at byte 3: text behind the value", message_for "1 2")
    assert.are.equal("not JSON at byte 2: lone surrogate escape", message_for '"\\udc00"')
    assert.are.equal("not JSON at byte 2: invalid UTF-8", message_for '"\xff"')
    assert.are.equal("not JSON at byte 2: premature EOF", message_for "[")
    assert.are.equal("not JSON at byte 1: invalid char in json text", message_for "x")
  end)

  describe("keeps within its budgets:", function()
    it("64 levels by default", function()
      assert.is_table(json.decode(("["):rep(64) .. ("]"):rep(64)))
      assert.are.same(
        { nil, "JSON nested deeper than 64 at byte 65" },
        { json.decode(("["):rep(65) .. ("]"):rep(65)) }
      )
      assert.are.same(
        { nil, "JSON nested deeper than 64 at byte 321" },
        { json.decode(('{"a":'):rep(100000)) }
      )
    end)

    it("the depth that was asked for", function()
      assert.are.equal(1, json.decode("1", 1))
      assert.is_table(json.decode("[1,{}]", 2))
      assert.is_nil(json.decode("[1,{}]", 1))
      assert.is_table(json.decode(("["):rep(10000) .. ("]"):rep(10000), 10000))
      assert.are.same(
        { nil, "JSON nested deeper than 10000 at byte 10001" },
        { json.decode(("["):rep(10001), 10000) }
      )
    end)

    it("a level that was left does not count", function()
      assert.is_table(json.decode("[" .. ("[[]],"):rep(1000) .. '{"a":{}}]', 3))
    end)

    it("the number of values that was asked for", function()
      assert.is_table(json.decode('[1,"a",{"k":null}]', nil, 5))
      assert.are.same(
        { nil, "more than 4 JSON values at byte 16" },
        { json.decode('[1,"a",{"k":null}]', nil, 4) }
      )
      assert.is_nil(json.decode("[[]]", nil, 1))
    end)

    it("a million values by default", function()
      local value, message = json.decode("[" .. ("{},"):rep(999999) .. "{}]")
      assert.is_nil(value)
      assert.are.equal("more than 1000000 JSON values at byte 2999999", message)
      assert.are.equal(999999, #json.decode("[" .. ("1,"):rep(999998) .. "1]"))
    end)
  end)

  it("raises for arguments of a wrong type or range", function()
    for _, arguments in ipairs { {}, { 12 }, { {} }, { "1", 0 }, { "1", 10001 }, { "1", "x" } } do
      assert.has_error(function()
        json.decode(table.unpack(arguments))
      end)
    end
    assert.has_error(function()
      json.decode("1", 64, 0)
    end)
  end)
end)

describe("json.encode", function()
  for expected, value in pairs {
    ["true"] = true,
    ["0"] = 0,
    ["-9223372036854775808"] = math.mininteger,
    ["0.0"] = 0.0,
    ["-0.0"] = -0.0,
    ["1.0"] = 1.0,
    ["0.1"] = 0.1,
    ["0.30000000000000004"] = 0.1 + 0.2,
    ["1e+15"] = 1e15,
    ["123456789012345.0"] = 123456789012345.0,
    ["4.94065645841247e-324"] = 5e-324,
    ["1.7976931348623157e+308"] = 1.7976931348623157e308,
    ['""'] = "",
    ['"/\x7f\u{e9}\u{1f600}"'] = "/\x7f\u{e9}\u{1f600}",
    ['"\\"\\\\\\b\\f\\n\\r\\t\\u0000\\u0001\\u001F"'] = '"\\\b\f\n\r\t\0\1\x1f',
    ["null"] = json.null,
    ["{}"] = {},
    ["[]"] = json.array {},
    ["[1,[2,[]],{}]"] = { 1, { 2, json.array {} }, {} },
    ['{"a":1,"b":[true]}'] = { b = { true }, a = 1 },
    ['{"1":"x"}'] = { ["1"] = "x" },
  } do
    it("writes " .. shown(expected), function()
      assert.are.equal(expected, json.encode(value))
    end)
  end

  it("writes false", function()
    assert.are.equal("false", json.encode(false))
  end)

  it("sorts members by the bytes of their names", function()
    local value = { ["\u{e9}"] = 1, Z = 2, a = 3, [""] = 4, ["a\0"] = 5, aa = 6, ["\u{1f600}"] = 7 }
    assert.are.equal(
      '{"":4,"Z":2,"a":3,"a\\u0000":5,"aa":6,"\u{e9}":1,"\u{1f600}":7}',
      json.encode(value)
    )
  end)

  it("reads tables raw", function()
    local poison = setmetatable({ a = 1 }, {
      __index = error,
      __pairs = error,
      __len = error,
      __tostring = error,
    })
    assert.are.equal('{"a":1}', json.encode(poison))
  end)

  describe("refuses", function()
    local cycle = {}
    cycle.self = { cycle }
    local long_cycle = json.array {}
    long_cycle[1] = long_cycle
    local itself = "JSON nested deeper than 64, or a table that contains itself"
    local cases = {
      { "NaN", 0 / 0, "NaN has no JSON form" },
      { "infinity", math.huge, "an infinite number has no JSON form" },
      { "-infinity", { -math.huge }, "an infinite number has no JSON form" },
      { "a function", { print }, "a value of type function has no JSON form" },
      { "a thread", coroutine.create(print), "a value of type thread has no JSON form" },
      { "a userdata", { a = io.stdout }, "a value of type userdata has no JSON form" },
      { "bad UTF-8", "ab\xff", "string is not valid UTF-8 at byte 3" },
      { "a surrogate", { "\xed\xa0\x80" }, "string is not valid UTF-8 at byte 1" },
      { "a bad name", { ["a\xc0\x80"] = 1 }, "string is not valid UTF-8 at byte 2" },
      { "a hole", { 1, nil, 3 }, "an array with a hole at 2 has no JSON form" },
      { "a late start", { [2] = 1 }, "an array with a hole at 1 has no JSON form" },
      { "a far key", { 1, [1 << 62] = 1 }, "an array with a hole at 2 has no JSON form" },
      { "the key 0", { [0] = 1 }, "an object with the key 0 has no JSON form" },
      { "the key -5", { 1, [-5] = 1 }, "an object with the key -5 has no JSON form" },
      { "mixed keys", { 7, a = 1 }, "an object with the key 1 has no JSON form" },
      { "a fraction as a key", { [1.5] = 1 }, "the table key 1.5 has no JSON form" },
      { "a boolean key", { [true] = 1 }, "a table key of type boolean has no JSON form" },
      { "null as a key", { [json.null] = 1 }, "a table key of type userdata has no JSON form" },
      { "a marked object", json.array { a = 1 }, "an array with a string key has no JSON form" },
      { "a marked 0", json.array { [0] = 1 }, "an array with the key 0 has no JSON form" },
      { "a marked hole", json.array { nil, 2 }, "an array with a hole at 1 has no JSON form" },
      { "a cycle", cycle, itself },
      { "a short cycle", long_cycle, itself },
    }
    for _, case in ipairs(cases) do
      local name, value, message = table.unpack(case)
      it(name, function()
        assert.are.same({ nil, message }, { json.encode(value) })
      end)
    end

    it("nil", function()
      assert.are.same({ nil, "a value of type nil has no JSON form" }, { json.encode(nil) })
    end)
  end)

  it("writes 64 levels and no more", function()
    local text = ("["):rep(64) .. ("]"):rep(64)
    local value = json.decode(text)
    assert.are.equal(text, json.encode(value))
    assert.is_nil(json.encode { value })
  end)

  it("writes a table twice that is no cycle", function()
    local shared = { 1 }
    assert.are.equal('{"a":[1],"b":[1]}', json.encode { a = shared, b = shared })
  end)

  it("stops at the budget of bytes, to the byte", function()
    for _, value in ipairs { ("x"):rep(5000), { 1, 2.5, true }, { key = { json.null } }, 12345, true } do
      local text = json.encode(value)
      assert.are.equal(text, json.encode(value, #text))
      local refusal = "JSON longer than " .. #text - 1 .. " bytes"
      assert.are.same({ nil, refusal }, { json.encode(value, #text - 1) })
    end
  end)

  it("stops a value whose text would grow without bound", function()
    local value = { "x" }
    for _ = 1, 60 do
      value = { value, value }
    end
    assert.are.same({ nil, "JSON longer than 100000 bytes" }, { json.encode(value, 100000) })
  end)

  it("raises for arguments of a wrong type or range", function()
    for _, arguments in ipairs { {}, { 1, 0 }, { 1, "x" }, { 1, 1.5 } } do
      assert.has_error(function()
        json.encode(table.unpack(arguments))
      end)
    end
  end)
end)

describe("json.array", function()
  it("marks the table it is given, also twice", function()
    local list = {}
    assert.are.equal(list, json.array(json.array(list)))
    assert.is_true(is_array(list))
  end)

  it("refuses what is no table, or is something else already", function()
    local other = setmetatable({}, {})
    for _, value in ipairs { 1, "x", other, json.null } do
      assert.has_error(function()
        json.array(value)
      end)
    end
    assert.is_false(is_array(other))
  end)
end)

describe("a round trip", function()
  it("keeps every text that encode wrote", function()
    for _, text in ipairs {
      "[]",
      "{}",
      "[[],{},[{}],null]",
      '{"a":{"b":[1,1.0,-0.0,"\\u0000",null,true,false]}}',
      '["\u{10ffff}","\\\\u0041"]',
    } do
      assert.are.equal(text, json.encode(json.decode(text)))
    end
  end)

  it("keeps floats bit by bit", function()
    math.randomseed(7)
    for _ = 1, 20000 do
      local value = string.unpack("d", string.pack("j", math.random(0)))
      if value == value and math.abs(value) ~= math.huge then
        assert.are.equal(string.pack("d", value), string.pack("d", json.decode(json.encode(value))))
      end
    end
  end)

  it("keeps integers", function()
    for shift = 0, 63 do
      for _, value in ipairs { 1 << shift, (1 << shift) - 1, -(1 << shift), ~(1 << shift) } do
        assert_same_number(value, json.decode(json.encode(value)))
      end
    end
  end)

  it("keeps every character of Unicode", function()
    local parts = {}
    for code = 0, 0x10ffff do
      if code < 0xd800 or code > 0xdfff then
        parts[#parts + 1] = utf8.char(code)
      end
    end
    local all = table.concat(parts)
    assert.is_true(all == json.decode(json.encode(all)))
  end)
end)
