-- Makes what a script sees out of the functions that the worker has: `raw` are those, `globals` the
-- table that an interpreter begins with. Returns the environment of scripts, the function that
-- runs one, one that tells whether what scripts share is as it was, and the names of what a script
-- could use to change it so that this would not be seen; then the environment of libraries, the
-- function that runs one and returns what it registers, and one that calls a function of it.
--
-- Functions of the worker return false and a message where they fail. Here it is raised, with the
-- place in the script. A global that is not there is an error, and none can be made.
local raw, globals = ...
local error, type, rawget, unpack, xpcall = error, type, rawget, unpack, xpcall
local first_pcall, first_setmetatable, first_rawset, setfenv = pcall, setmetatable, rawset, setfenv

local READ_ONLY = 'Attempt to modify a readonly table'
local locked = {}

local function refuse()
    error(READ_ONLY, 2)
end

-- A table that reads as `inner` and cannot be changed.
local function lock(inner)
    local outer, sealed = {}, {}
    first_setmetatable(sealed, { __newindex = refuse, __metatable = false })
    first_setmetatable(outer, { __index = inner, __newindex = refuse, __metatable = sealed })
    locked[outer] = true
    return outer
end

local function one(f)
    return function(...)
        local done, result = f(...)
        if done then
            return result
        end
        error(result, 2)
    end
end

local function many(f)
    return function(...)
        local done, results = f(...)
        if done then
            return unpack(results, 1, results.n)
        end
        error(results, 2)
    end
end

local MULTIPLE = { ['cmsgpack.unpack'] = true, ['cmsgpack.unpack_one'] = true,
    ['cmsgpack.unpack_limit'] = true, ['struct.unpack'] = true }
for _, name in ipairs({ 'bit', 'cjson', 'cmsgpack', 'struct' }) do
    local library = {}
    for key, value in pairs(raw[name]) do
        if type(value) ~= 'function' then
            library[key] = value
        elseif MULTIPLE[name .. '.' .. key] then
            library[key] = many(value)
        else
            library[key] = one(value)
        end
    end
    globals[name] = lock(library)
end

-- Errors of `redis` are tables, as they are where a command fails.
local function fail(text)
    error({ err = 'ERR ' .. text }, 0)
end

local redis = {
    LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
    REPL_NONE = 0, REPL_AOF = 1, REPL_SLAVE = 2, REPL_REPLICA = 2, REPL_ALL = 3,
    REDIS_VERSION = raw.version, REDIS_VERSION_NUM = raw.version_number,
}

redis.call, redis.pcall = raw.call, raw.pcall

function redis.error_reply(...)
    local text = ...
    if select('#', ...) ~= 1 or type(text) ~= 'string' then
        return { err = 'ERR wrong number or type of arguments' }
    end
    local code, rest = text:match('^%-?([^ ]*) (.*)$')
    if not code then
        return { err = 'ERR ' .. text:gsub('^%-', '') }
    end
    return { err = code .. ' ' .. rest }
end

function redis.status_reply(...)
    local text = ...
    if select('#', ...) ~= 1 or type(text) ~= 'string' then
        return { err = 'ERR wrong number or type of arguments' }
    end
    return { ok = text }
end

function redis.sha1hex(...)
    if select('#', ...) ~= 1 then
        fail('wrong number of arguments')
    end
    return raw.sha1hex(...)
end

function redis.log(level, ...)
    if select('#', ...) < 1 then
        fail('redis.log() requires two arguments or more.')
    end
    if type(level) ~= 'number' then
        fail('First argument must be a number (log level).')
    end
    if level < 0 or level > 3 then
        fail('Invalid log level.')
    end
    local words = { ... }
    for i = 1, select('#', ...) do
        words[i] = tostring(words[i])
    end
    raw.log(level, table.concat(words, ' '))
end

function redis.setresp(...)
    local version = ...
    if select('#', ...) ~= 1 then
        fail('redis.setresp() requires one argument.')
    end
    if version ~= 2 and version ~= 3 then
        fail('RESP version must be 2 or 3.')
    end
    raw.setresp(version)
end

-- There are no replicas and no debugger; a script is always atomic.
function redis.set_repl(...)
    if select('#', ...) ~= 1 then
        fail('redis.set_repl() requires two arguments.')
    end
end
function redis.replicate_commands()
    return true
end
function redis.breakpoint()
    return false
end
function redis.debug() end

globals.redis = lock(redis)
globals.os = lock({ clock = raw.clock })

-- What `newproxy` makes may have a finalizer. The last of them would run when the interpreter is taken
-- down: when the script has answered, and the next one is to come.
for _, name in ipairs({ 'dofile', 'loadfile', 'print', 'require', 'module', 'package', 'debug', 'io', 'newproxy' }) do
    globals[name] = nil
end

-- As before there were errors that are tables: a script sees the text.
local function text_of(done, fault, ...)
    if not done and type(fault) == 'table' and type(rawget(fault, 'err')) == 'string' then
        return false, rawget(fault, 'err')
    end
    return done, fault, ...
end
function globals.pcall(...)
    return text_of(first_pcall(...))
end

function globals.setmetatable(...)
    if locked[(...)] then
        error(READ_ONLY, 2)
    end
    return first_setmetatable(...)
end
function globals.rawset(...)
    if locked[(...)] then
        error(READ_ONLY, 2)
    end
    return first_rawset(...)
end

local NONEXISTENT = "Script attempted to access nonexistent global variable '"
local missing = {
    __index = function(_, name)
        error(NONEXISTENT .. tostring(name) .. "'", 2)
    end,
}
local environment = lock(globals)
globals._G = environment
first_setmetatable(globals, missing)

-- Text is compiled, bytecode is not: there is no telling what it would do.
function globals.loadstring(text, name)
    if type(text) ~= 'string' then
        error("bad argument #1 to 'loadstring' (string expected, got " .. type(text) .. ')', 2)
    end
    local compiled, message = raw.compile(text, type(name) == 'string' and name or text)
    if not compiled then
        return nil, message
    end
    return setfenv(compiled, environment)
end
function globals.load(read, name)
    if type(read) ~= 'function' then
        error("bad argument #1 to 'load' (function expected, got " .. type(read) .. ')', 2)
    end
    local pieces = {}
    while true do
        local piece = read()
        if piece == nil or piece == '' then
            break
        end
        if type(piece) ~= 'string' then
            return nil, 'reader function must return a string'
        end
        pieces[#pieces + 1] = piece
    end
    return globals.loadstring(table.concat(pieces), type(name) == 'string' and name or '=(load)')
end

local function run(script)
    return xpcall(script, raw.locate)
end

-- The functions of the library that is being run, in their order and by their names in lower case.
local registered

local FLAGS = { ['no-writes'] = 1, ['allow-oom'] = 2, ['allow-stale'] = 4, ['no-cluster'] = 8,
    ['allow-cross-slot-keys'] = 16 }

local function text(value, otherwise)
    if type(value) ~= 'string' and type(value) ~= 'number' then
        fail(otherwise)
    end
    return tostring(value)
end

local function flags_of(list)
    local flags = 0
    for _, flag in ipairs(list) do
        local bit = FLAGS[text(flag, 'unknown flag given'):lower()]
        if not bit then
            fail('unknown flag given')
        end
        if flags % (2 * bit) < bit then
            flags = flags + bit
        end
    end
    return flags
end

local function named(given)
    local found = { flags = 0 }
    for key, value in next, given do
        if type(key) ~= 'string' and type(key) ~= 'number' then
            fail('named argument key given to redis.register_function is not a string')
        end
        local word = tostring(key):lower()
        if word == 'function_name' then
            found.name = text(value,
                'function_name argument given to redis.register_function must be a string')
        elseif word == 'description' then
            found.description = text(value,
                'description argument given to redis.register_function must be a string')
        elseif word == 'callback' then
            if type(value) ~= 'function' then
                fail('callback argument given to redis.register_function must be a function')
            end
            found.callback = value
        elseif word == 'flags' then
            if type(value) ~= 'table' then
                fail('flags argument to redis.register_function must be a table representing function flags')
            end
            found.flags = flags_of(value)
        else
            fail('unknown argument given to redis.register_function')
        end
    end
    if not found.name then
        fail('redis.register_function must get a function name argument')
    end
    if not found.callback then
        fail('redis.register_function must get a callback argument')
    end
    return found
end

local function register_function(...)
    local count, first, second = select('#', ...), ...
    local found
    if not registered then
        fail('redis.register_function can only be called on FUNCTION LOAD command')
    elseif count == 1 then
        if type(first) ~= 'table' then
            fail('calling redis.register_function with a single argument is only applicable to Lua table (representing named arguments).')
        end
        found = named(first)
    elseif count == 2 then
        found = { flags = 0, callback = second }
        found.name = text(first, 'first argument to redis.register_function must be a string')
        if type(second) ~= 'function' then
            fail('second argument to redis.register_function must be a function')
        end
    else
        fail('wrong number of arguments to redis.register_function')
    end
    if not found.name:find('^[%w_]+$') then
        fail('Library names can only contain letters, numbers, or underscores(_) and must be at least one character long')
    end
    local lower = found.name:lower()
    if registered.named[lower] then
        fail('Function already exists in the library')
    end
    registered.named[lower] = found
    registered[#registered + 1] = found
end

-- While a library is run it sees this alone. Its functions see what scripts see, without what
-- Redis does not show to them, and without the keys and arguments of scripts.
local at_first = { redis = { register_function = register_function } }
for _, name in ipairs({ 'log', 'LOG_DEBUG', 'LOG_VERBOSE', 'LOG_NOTICE', 'LOG_WARNING',
    'REDIS_VERSION', 'REDIS_VERSION_NUM' }) do
    at_first.redis[name] = redis[name]
end
first_setmetatable(at_first.redis, missing)
at_first.redis = lock(at_first.redis)
local withheld = { os = true, getfenv = true, setfenv = true, KEYS = true, ARGV = true }
local library = {}
first_setmetatable(library, {
    __index = function(_, name)
        local value
        if registered then
            value = at_first[name]
        elseif name == '_G' then
            value = library
        elseif not withheld[name] then
            value = rawget(globals, name)
        end
        if value == nil then
            error(NONEXISTENT .. tostring(name) .. "'", 2)
        end
        return value
    end,
    __newindex = refuse,
    __metatable = first_setmetatable({}, { __newindex = refuse, __metatable = false }),
})
locked[library] = true

local function register(script)
    registered = { named = {} }
    local done, fault = xpcall(script, raw.locate)
    local found = registered
    registered = nil
    if done then
        return true, found
    end
    return false, fault
end

local function invoke(script, name, keys, arguments)
    local done, found = register(script)
    if not done then
        return false, found
    end
    local wanted = found.named[name:lower()]
    if not wanted then
        return false, { err = 'ERR Function not found' }
    end
    return xpcall(function()
        return wanted.callback(keys, arguments)
    end, raw.locate)
end

-- What is reachable by these names does not change, or in a way that `untouched` sees.
local harmless = {}
for _, name in ipairs({
    'redis', 'cjson', 'cmsgpack', 'bit', 'struct', 'os', 'string', 'table', 'math', 'assert',
    'error', 'ipairs', 'next', 'pairs', 'pcall', 'xpcall', 'rawequal', 'rawget', 'select',
    'tonumber', 'tostring', 'type', 'unpack',
}) do
    harmless[name] = true
end
local harmful = {}
for name in pairs(globals) do
    if not harmless[name] then
        harmful[#harmful + 1] = name
    end
end

-- The tables of Lua's libraries can be written to. Those of `lock` cannot, but `table.insert`
-- passes their metatables by.
local next = next
local first = {}
for _, library in ipairs({ string, table, math }) do
    local copy = {}
    for key, value in pairs(library) do
        copy[key] = value
    end
    first[library] = copy
end
local function untouched()
    for outer in next, locked do
        if next(outer) ~= nil then
            return false
        end
    end
    for library, copy in next, first do
        for key, value in next, library do
            if copy[key] ~= value then
                return false
            end
        end
        for key in next, copy do
            if rawget(library, key) == nil then
                return false
            end
        end
    end
    return true
end
return environment, run, untouched, harmful, library, register, invoke
