//! Definition of library functions: their arguments and their errors.
//!
//! A function that fails returns `false` and a message, which `prelude.lua` raises with the line of
//! the script that called it; a function that succeeds returns `true` and its value.

use mlua::{Function, IntoLua, Lua, MultiValue, Value};

/// The error of a function: a message for the script, or an error of the interpreter itself.
pub enum Fault {
    Message(String),
    Lua(mlua::Error),
}

impl From<mlua::Error> for Fault {
    fn from(error: mlua::Error) -> Self {
        Fault::Lua(error)
    }
}
impl From<String> for Fault {
    fn from(message: String) -> Self {
        Fault::Message(message)
    }
}
impl From<&str> for Fault {
    fn from(message: &str) -> Self {
        Fault::Message(message.into())
    }
}

/// Makes a function that the prelude wraps.
pub fn function<R: IntoLua>(
    lua: &Lua,
    run: impl Fn(&Lua, &[Value]) -> Result<R, Fault> + 'static,
) -> mlua::Result<Function> {
    lua.create_function(move |lua, given: MultiValue| match run(lua, &given.into_vec()) {
        Ok(value) => Ok((true, value.into_lua(lua)?)),
        Err(Fault::Message(text)) => Ok((false, text.into_lua(lua)?)),
        Err(Fault::Lua(error)) => Err(error),
    })
}

fn type_of(value: Option<&Value>) -> &'static str {
    value.map_or("no value", Value::type_name)
}

/// Returns argument `at`, counted from 1, as a number. A string that contains a number is accepted.
pub fn number(given: &[Value], at: usize, function: &str) -> Result<f64, Fault> {
    let value = given.get(at - 1);
    match value {
        Some(Value::Integer(n)) => Ok(*n as f64),
        Some(Value::Number(n)) => Ok(*n),
        Some(Value::String(text)) => {
            let text = text.to_string_lossy();
            text.trim().parse().map_err(|_| bad(at, function, "number expected, got string"))
        }
        _ => Err(bad(at, function, &format!("number expected, got {}", type_of(value)))),
    }
}

/// Returns argument `at`, counted from 1, as bytes. A number is accepted.
pub fn text(given: &[Value], at: usize, function: &str) -> Result<Vec<u8>, Fault> {
    let value = given.get(at - 1);
    match value {
        Some(Value::String(text)) => Ok(text.as_bytes().to_vec()),
        Some(Value::Integer(n)) => Ok(n.to_string().into_bytes()),
        Some(Value::Number(n)) => Ok(crate::numbers::general(*n, 14).into_bytes()),
        _ => Err(bad(at, function, &format!("string expected, got {}", type_of(value)))),
    }
}

/// Returns the error for an invalid argument `at`.
pub fn bad(at: usize, function: &str, why: &str) -> Fault {
    Fault::Message(format!("bad argument #{at} to '{function}' ({why})"))
}
