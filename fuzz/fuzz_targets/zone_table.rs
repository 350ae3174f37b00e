#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| zones::parsers::zone_table(data));
