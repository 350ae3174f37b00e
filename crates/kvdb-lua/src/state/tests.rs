//! Tests of the interpreter.

use super::*;

struct NoServer;
impl Server for NoServer {
    fn call(&mut self, _: &[Vec<u8>], _: u8) -> Vec<u8> {
        b"+OK\r\n".to_vec()
    }
    fn log(&mut self, _: u8, _: &[u8]) {}
}

fn state() -> State {
    State::new(64 << 20, Rc::new(RefCell::new(NoServer))).expect("an interpreter")
}

fn run(state: &State, script: &str) -> End {
    let script = state.prepare(script.as_bytes()).expect("it compiles");
    state.run(&script, b"name", &[b"key"], &[b"argument"])
}

#[test]
fn what_most_scripts_do_leaves_an_interpreter_as_new() {
    let state = state();
    for script in [
        "return 1",
        "return redis.call('GET', KEYS[1])",
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end",
        "local t = {} for i = 1, 9 do table.insert(t, tostring(i)) end return table.concat(t)",
        "local t = cjson.decode('[1, 2]') return cjson.encode({a = t[1], payload = 'loads'})",
        "redis.setresp(3) return {err = 'MINE no'}",
        "return pcall(error, 'caught')",
    ] {
        assert!(matches!(run(&state, script), End::Returned(..)), "{script}");
        assert!(state.is_as_new(), "{script}");
    }
    // The version is RESP2 again.
    assert!(matches!(run(&state, "return 1"), End::Returned(_, 2)));
}

#[test]
fn what_might_change_another_script_does_not() {
    for script in [
        "string.mine = 1",
        "string.format = nil",
        "local s = string s.rep = s.len",
        "math.pi = 3",
        "table.insert(redis, 'mine')",
        "table.insert(cjson, 'mine')",
        "cjson.encode_number_precision(3)",
        "cjson['encode_' .. 'max_depth'](3)",
        "getmetatable('').__index = table",
        "setmetatable(string, {})",
        "rawset(string, 'mine', 1)",
        "getfenv(0).mine = 1",
        "pcall(setfenv, redis.error_reply, {})",
        "local name = 'get' .. 'fenv' _G[name](0).mine = 1",
        "loadstring('return 1')()",
        "load(function() end)",
        "coroutine.wrap(function() end)()",
        "collectgarbage('stop')",
        "error('failed')",
        "local t = {} for i = 1, 1e5 do t[i] = {i} end redis.kept = nil",
        "local s = string.rep('x', 2e6) return s",
    ] {
        let state = state();
        assert!(state.is_as_new());
        run(&state, script);
        assert!(!state.is_as_new(), "{script}");
    }
}

#[test]
fn a_library_registers_functions_that_are_called_by_their_names() {
    let state = state();
    let text = b"local function double(keys, args) return args[1] * 2 end
        redis.register_function('Double', double)
        redis.register_function{function_name = 'nothing', callback = function() return KEYS end,
            description = 'none', flags = {'no-writes', 'ALLOW-OOM', 'no-writes'}}";
    let library = state.prepare_library(text).expect("it compiles");
    let registered = state.register(&library).expect("it registers");
    let double = Registered { name: "Double".into(), description: None, flags: 0 };
    let nothing =
        Registered { name: "nothing".into(), description: Some(b"none".to_vec()), flags: 3 };
    assert_eq!(registered, [double, nothing]);
    assert!(matches!(
        state.invoke(&library, b"DOUBLE", &[], &[b"21"]),
        End::Returned(Value::Integer(42) | Value::Number(42.0), 2)
    ));
    assert!(state.is_as_new());
    // The keys of the script before are not those of the function.
    assert!(matches!(run(&state, "return 1"), End::Returned(..)));
    let End::Failed(why) = state.invoke(&library, b"nothing", &[b"k"], &[]) else {
        panic!("it has found the keys");
    };
    assert_eq!(
        String::from_utf8_lossy(&why),
        "ERR user_function:3: Script attempted to access nonexistent global variable 'KEYS' \
         script: nothing, on @user_function:3."
    );
}

#[test]
fn a_library_sees_little_while_it_is_run() {
    for (text, why) in [
        ("return 1", "ERR No functions registered"),
        ("1", "ERR Error compiling function: user_function:1: unexpected symbol near '1'"),
        (
            "local x = string.len('')",
            "ERR Error registering functions: ERR user_function:1: \
             Script attempted to access nonexistent global variable 'string'",
        ),
        (
            "redis.call('PING')",
            "ERR Error registering functions: ERR user_function:1: \
             Script attempted to access nonexistent global variable 'call'",
        ),
        (
            "x = 1",
            "ERR Error registering functions: ERR user_function:1: \
             Attempt to modify a readonly table",
        ),
        (
            "redis.register_function('a', 1)",
            "ERR Error registering functions: ERR \
             second argument to redis.register_function must be a function",
        ),
    ] {
        let state = state();
        let done = state.prepare_library(text.as_bytes()).and_then(|l| state.register(&l));
        let told = done.expect_err(text);
        assert_eq!(String::from_utf8_lossy(&told), why, "{text}");
    }
}

#[test]
fn what_a_script_draws_does_not_follow_from_the_one_before() {
    let state = state();
    let draw = || {
        assert!(matches!(run(&state, "math.randomseed(7) return 1"), End::Returned(..)));
        match run(&state, "return math.random(1, 1000000000)") {
            End::Returned(Value::Number(drawn), _) => drawn,
            End::Returned(Value::Integer(drawn), _) => drawn as f64,
            _ => panic!("no number"),
        }
    };
    let (first, second) = (draw(), draw());
    assert!(first != second, "{first} twice");
    assert!(state.is_as_new());
}

#[test]
fn all_global_variables_are_either_known_to_be_harmless_or_not() {
    let state = state();
    for name in ["_G", "getfenv", "setfenv", "getmetatable", "setmetatable", "rawset", "load"] {
        assert!(state.harmful.contains(name.as_bytes()), "{name}");
    }
    for name in ["redis", "string", "pcall", "KEYS"] {
        assert!(!state.harmful.contains(name.as_bytes()), "{name}");
    }
}
