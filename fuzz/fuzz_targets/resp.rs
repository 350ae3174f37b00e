#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    kvdb_server::parsers::requests(data);
    kvdb_server::parsers::replies(data);
    kvdb_server::parsers::payloads(data);
});
