#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    kvdb_wire::parsers::frames(data);
    kvdb_wire::parsers::messages(data);
});
