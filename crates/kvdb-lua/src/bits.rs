//! The library `bit`: bitwise operations on 32-bit integers.

use mlua::{Lua, Table, Value};

use crate::arguments::{Fault, bad, function, number};

/// Returns an argument modulo 2³².
fn bits(given: &[Value], at: usize, name: &str) -> Result<u32, Fault> {
    let value = number(given, at, name)?;
    // Rounded like the arithmetic of the original library.
    Ok(value.round_ties_even().rem_euclid(4_294_967_296.0) as u32)
}

fn signed(bits: u32) -> f64 {
    f64::from(bits as i32)
}

pub fn library(lua: &Lua) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    let one = |name: &'static str, run: fn(u32) -> u32| {
        let made = function(lua, move |_, given| Ok(signed(run(bits(given, 1, name)?))))?;
        library.set(name, made)
    };
    one("tobit", |n| n)?;
    one("bnot", |n| !n)?;
    one("bswap", u32::swap_bytes)?;
    let many = |name: &'static str, run: fn(u32, u32) -> u32| {
        let made = function(lua, move |_, given| {
            let mut all = bits(given, 1, name)?;
            for at in 2..=given.len() {
                all = run(all, bits(given, at, name)?);
            }
            Ok(signed(all))
        })?;
        library.set(name, made)
    };
    many("band", |a, b| a & b)?;
    many("bor", |a, b| a | b)?;
    many("bxor", |a, b| a ^ b)?;
    let shift = |name: &'static str, run: fn(u32, u32) -> u32| {
        let made = function(lua, move |_, given| {
            Ok(signed(run(bits(given, 1, name)?, bits(given, 2, name)? & 31)))
        })?;
        library.set(name, made)
    };
    shift("lshift", |n, by| n << by)?;
    shift("rshift", |n, by| n >> by)?;
    shift("arshift", |n, by| (n as i32 >> by) as u32)?;
    shift("rol", u32::rotate_left)?;
    shift("ror", u32::rotate_right)?;
    let hex = function(lua, |_, given| {
        let value = bits(given, 1, "tohex")?;
        let digits = if given.len() > 1 { number(given, 2, "tohex")? } else { 8.0 };
        if digits.is_nan() {
            return Err(bad(2, "tohex", "not a number"));
        }
        let upper = digits < 0.0;
        let digits = digits.abs().min(8.0) as usize;
        let text = if upper { format!("{value:08X}") } else { format!("{value:08x}") };
        Ok(text[8 - digits..].to_owned())
    })?;
    library.set("tohex", hex)?;
    Ok(library)
}
