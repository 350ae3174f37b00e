#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| kvdb::parsers::published(data));
