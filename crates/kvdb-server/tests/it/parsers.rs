//! Feeds generated requests and replies to the parsers: valid and corrupted ones, cut into
//! arbitrary pieces. `KVFS_HOSTILE=10000000` runs that number of cases.

use kvdb_server::parsers;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n.max(1)
    }
}

const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "2",
    "-1",
    "+1",
    "00",
    "",
    "16385",
    "131073",
    "4194305",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "1x",
];

fn bytes(random: &mut Random) -> Vec<u8> {
    let mut out = vec![random.next() as u8];
    for _ in 0..random.below(6) {
        let count = random.below(4);
        match random.below(8) {
            0 => {
                let line: [&[u8]; 8] = [
                    b"get a",
                    b"set \"a b\" 'c'",
                    b"\"\\x41\\n\\\"",
                    b"'open",
                    b"\"a\"b",
                    b"",
                    b"  ",
                    b"x\0y",
                ];
                out.extend_from_slice(line[random.below(line.len())]);
                out.extend_from_slice([&b"\r\n"[..], b"\n", b"\r"][random.below(3)]);
            }
            1 => out.extend((0..random.below(30)).map(|_| random.next() as u8)),
            2 => {
                let kind = b"*$%~>=:,(#_+-"[random.below(13)];
                out.push(kind);
                out.extend_from_slice(NUMBERS[random.below(NUMBERS.len())].as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            _ => {
                out.extend_from_slice(format!("*{count}\r\n").as_bytes());
                for _ in 0..count {
                    let len = random.below(20);
                    out.extend_from_slice(format!("${len}\r\n").as_bytes());
                    out.extend((0..len).map(|_| random.next() as u8));
                    out.extend_from_slice(b"\r\n");
                }
            }
        }
    }
    if random.below(4) == 0 {
        let at = random.below(out.len());
        out[at] = random.next() as u8;
    }
    if random.below(6) == 0 {
        out.truncate(random.below(out.len()) + 1);
    }
    out
}

#[test]
fn whatever_comes_is_read_or_refused_and_pieces_do_not_matter() {
    let number = |name: &str, or: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
    };
    let base: u64 = number("KVFS_BASE", 0);
    for seed in base..base + number("KVFS_HOSTILE", 200_000) {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        random.next();
        let data = bytes(&mut random);
        let done = std::panic::catch_unwind(|| {
            parsers::requests(&data);
            parsers::replies(&data);
            parsers::payloads(&data);
        });
        assert!(done.is_ok(), "seed {seed}: {}", data.escape_ascii());
    }
    parsers::replies(&b"*1\r\n".repeat(1 << 20));
}
