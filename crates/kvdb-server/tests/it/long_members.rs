//! Tests of fields and members of every length. Names that are too long for a key of the store
//! behave like short ones.

use std::time::Duration;

use crate::expiry::clocked;
use crate::served::{Served, serve, show, tuples};
use env::Random;
use kvdb::{Batch, Durability, Kvdb};
use kvdb_server::{Client, Limits, Reply, ServerOptions};

/// The longest name that is in a key as it is, bytes.
pub const IN_KEY: usize = 16 << 10;

/// Lengths around that limit and around the length of what stands in a key for a longer name, and
/// those of large jobs.
const LENGTHS: [usize; 9] =
    [10, IN_KEY - 1, IN_KEY, IN_KEY + 1, IN_KEY + 31, IN_KEY + 32, IN_KEY + 33, 100_000, 5_000_000];

/// A name of any bytes that ends with `END`.
pub fn name(len: usize, seed: u64) -> Vec<u8> {
    let mut name = vec![0; len];
    Random::new(seed ^ len as u64).fill(&mut name);
    name[len - 3..].copy_from_slice(b"END");
    name
}

/// A name that has the same beginning as all others of `like`, up to the length that fits into a
/// key.
pub fn like(begin: u8, end: &str) -> Vec<u8> {
    [&vec![begin; IN_KEY][..], end.as_bytes()].concat()
}

pub fn bulk(bytes: &[u8]) -> Reply {
    Reply::Bulk(bytes.to_vec())
}

pub fn bulks(all: &[&[u8]]) -> Reply {
    Reply::Array(all.iter().map(|bytes| bulk(bytes)).collect())
}

/// Shows a reply without the many bytes of a long name.
pub fn brief(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) if bytes.len() > 100 => format!("<{} bytes>", bytes.len()),
        Reply::Array(items) => format!("{:?}", items.iter().map(brief).collect::<Vec<_>>()),
        other => show(other),
    }
}

pub struct World {
    pub served: Served,
    pub client: Client,
}

impl World {
    pub fn new() -> World {
        let served = serve(ServerOptions::default());
        let client = Client::connect(&served.path).expect("connected");
        World { served, client }
    }
    /// Calls the command in `text`, in which `%` stands for the next of `names`.
    pub fn run(&mut self, text: &str, names: &[&[u8]]) -> Reply {
        let (mut names, mut words) = (names.iter(), Vec::<&[u8]>::new());
        for word in text.split(' ') {
            words.push(match word {
                "%" => *names.next().expect("a name for each %"),
                word => word.as_bytes(),
            });
        }
        self.client.call(&words).expect("a reply")
    }
    #[track_caller]
    pub fn expect(&mut self, text: &str, names: &[&[u8]], want: &Reply) {
        let reply = self.run(text, names);
        assert!(reply == *want, "{text}: {} instead of {}", brief(&reply), brief(want));
    }
    #[track_caller]
    pub fn number(&mut self, text: &str, names: &[&[u8]], want: i64) {
        self.expect(text, names, &Reply::Integer(want));
    }
    #[track_caller]
    pub fn ok(&mut self, text: &str, names: &[&[u8]]) {
        self.expect(text, names, &Reply::Status("OK".into()));
    }
    #[track_caller]
    fn payload(&mut self, key: &str) -> Vec<u8> {
        match self.run(&format!("DUMP {key}"), &[]) {
            Reply::Bulk(payload) => payload,
            other => panic!("DUMP {key}: {}", brief(&other)),
        }
    }
    /// Restores, copies and renames a key, after each of which `read` must reply as before.
    #[track_caller]
    fn moves(&mut self, key: &str, read: &str) {
        let want = self.run(&read.replace("KEY", key), &[]);
        let payload = self.payload(key);
        self.ok("RESTORE restored 0 %", &[&payload]);
        self.expect(&read.replace("KEY", "restored"), &[], &want);
        assert!(self.payload("restored") == payload, "one content has one payload");
        self.ok("RESTORE restored 100000 % REPLACE", &[&payload]);
        self.expect(&read.replace("KEY", "restored"), &[], &want);
        self.number(&format!("COPY {key} copied"), &[], 1);
        self.expect(&read.replace("KEY", "copied"), &[], &want);
        self.ok("RENAME copied renamed", &[]);
        self.expect(&read.replace("KEY", "renamed"), &[], &want);
        self.number("DEL restored renamed", &[], 2);
    }
    /// Checks that nothing is stored any more.
    #[track_caller]
    pub fn is_empty(&self) {
        assert_eq!(tuples(&self.served.db), (0, 0), "tuples are left over");
    }
}

#[test]
fn a_field_of_any_length_is_written_read_and_removed() {
    let mut w = World::new();
    for len in LENGTHS {
        let (name, other) = (name(len, 1), name(len, 2));
        w.number("HSET h % value", &[&name], 1);
        w.number("HSET h % value", &[&name], 0);
        w.number("HSETNX h % other", &[&name], 0);
        w.expect("HGET h %", &[&name], &bulk(b"value"));
        w.expect("HGET h %", &[&other], &Reply::Null);
        w.expect("HMGET h % %", &[&other, &name], &Reply::Array(vec![Reply::Null, bulk(b"value")]));
        w.number("HEXISTS h %", &[&name], 1);
        w.number("HEXISTS h %", &[&other], 0);
        w.number("HSTRLEN h %", &[&name], 5);
        w.number("HLEN h", &[], 1);
        w.expect("HKEYS h", &[], &bulks(&[&name]));
        w.expect("HVALS h", &[], &bulks(&[b"value"]));
        w.expect("HGETALL h", &[], &bulks(&[&name, b"value"]));
        w.expect("HRANDFIELD h", &[], &bulk(&name));
        w.expect("HRANDFIELD h 2 WITHVALUES", &[], &bulks(&[&name, b"value"]));
        let page = Reply::Array(vec![bulk(b"0"), bulks(&[&name, b"value"])]);
        w.expect("HSCAN h 0", &[], &page);
        w.expect("HSCAN h 0 MATCH *END", &[], &page);
        w.expect("HSCAN h 0 MATCH *end", &[], &Reply::Array(vec![bulk(b"0"), bulks(&[])]));
        w.number("HINCRBY h % 7", &[&other], 7);
        w.number("HINCRBY h % 7", &[&other], 14);
        w.expect("HINCRBYFLOAT h % 0.5", &[&other], &bulk(b"14.5"));
        w.number("HLEN h", &[], 2);
        w.moves("h", "HGETALL KEY");
        w.number("HDEL h % % %", &[&other, &other, b"none"], 1);
        w.number("HDEL h %", &[&name], 1);
        w.number("EXISTS h", &[], 0);
        w.is_empty();
    }
}

#[test]
fn a_member_of_any_length_is_in_a_set() {
    let mut w = World::new();
    for len in LENGTHS {
        let (name, other) = (name(len, 1), name(len, 2));
        w.number("SADD s % %", &[&name, &name], 1);
        w.number("SADD s %", &[&name], 0);
        w.number("SISMEMBER s %", &[&name], 1);
        let both = Reply::Array(vec![Reply::Integer(0), Reply::Integer(1)]);
        w.expect("SMISMEMBER s % %", &[&other, &name], &both);
        w.number("SCARD s", &[], 1);
        w.expect("SMEMBERS s", &[], &bulks(&[&name]));
        w.expect("SRANDMEMBER s", &[], &bulk(&name));
        w.expect("SRANDMEMBER s -2", &[], &bulks(&[&name, &name]));
        let page = Reply::Array(vec![bulk(b"0"), bulks(&[&name])]);
        w.expect("SSCAN s 0 MATCH *END", &[], &page);
        w.expect("SORT s BY nosort", &[], &bulks(&[&name]));
        w.moves("s", "SMEMBERS KEY");
        w.number("SADD t % %", &[&name, &other], 2);
        w.number("SUNIONSTORE u s t", &[], 2);
        w.expect("SINTER s u", &[], &bulks(&[&name]));
        w.expect("SDIFF t s", &[], &bulks(&[&other]));
        w.number("SINTERCARD 2 s t", &[], 1);
        w.number("SDIFFSTORE u t s", &[], 1);
        w.number("SMOVE t s %", &[&other], 1);
        w.number("SMOVE t s %", &[&other], 0);
        w.number("SISMEMBER s %", &[&other], 1);
        w.number("SREM s % %", &[&other, b"none"], 1);
        w.expect("SPOP s", &[], &bulk(&name));
        w.expect("SPOP u 5", &[], &bulks(&[&other]));
        w.number("DEL t", &[], 1);
        w.is_empty();
    }
}

#[test]
fn a_member_of_any_length_has_a_score() {
    let mut w = World::new();
    for len in LENGTHS {
        let (name, other) = (name(len, 1), name(len, 2));
        w.number("ZADD z 2 % 1 %", &[&name, &name], 1);
        w.number("ZADD z CH 3 %", &[&name], 1);
        w.expect("ZSCORE z %", &[&name], &bulk(b"3"));
        w.expect("ZINCRBY z 0.5 %", &[&name], &bulk(b"3.5"));
        w.expect("ZMSCORE z % %", &[&other, &name], &Reply::Array(vec![Reply::Null, bulk(b"3.5")]));
        w.number("ZADD z 1 low 9 high", &[], 2);
        w.number("ZRANK z %", &[&name], 1);
        w.number("ZREVRANK z %", &[&name], 1);
        w.expect("ZRANGE z 1 1 WITHSCORES", &[], &bulks(&[&name, b"3.5"]));
        w.expect("ZRANGE z 0 -1", &[], &bulks(&[b"low", &name, b"high"]));
        w.expect("ZREVRANGE z 0 -1", &[], &bulks(&[b"high", &name, b"low"]));
        w.expect("ZRANGEBYSCORE z (1 5 LIMIT 0 1", &[], &bulks(&[&name]));
        w.number("ZCOUNT z 2 4", &[], 1);
        let page = [&b"high"[..], b"9", b"low", b"1"];
        w.expect("ZSCAN z 0 MATCH *[wh]", &[], &Reply::Array(vec![bulk(b"0"), bulks(&page)]));
        w.expect("SORT z BY nosort LIMIT 1 1", &[], &bulks(&[&name]));
        w.moves("z", "ZRANGE KEY 0 -1 WITHSCORES");
        w.number("ZADD y 4 % 4 %", &[&name, &other], 2);
        w.number("ZUNIONSTORE u 2 z y", &[], 4);
        w.expect("ZSCORE u %", &[&name], &bulk(b"7.5"));
        w.expect("ZINTER 2 z y WITHSCORES", &[], &bulks(&[&name, b"7.5"]));
        w.expect("ZDIFF 2 y z", &[], &bulks(&[&other]));
        w.number("ZINTERCARD 2 z y", &[], 1);
        w.number("ZRANGESTORE u z 1 1", &[], 1);
        w.expect("ZRANDMEMBER u", &[], &bulk(&name));
        w.expect("BZPOPMIN u 1", &[], &bulks(&[b"u", &name, b"3.5"]));
        w.number("ZREM z % low", &[&name], 2);
        w.number("ZREMRANGEBYSCORE y 4 4", &[], 2);
        w.expect("ZPOPMAX z", &[], &bulks(&[b"high", b"9"]));
        w.number("GEOADD g 13 38 %", &[&name], 1);
        w.expect("GEOSEARCH g FROMMEMBER % BYRADIUS 1 km", &[&name], &bulks(&[&name]));
        w.number("ZREMRANGEBYRANK g 0 0", &[], 1);
        w.is_empty();
    }
}

#[test]
fn values_of_lists_and_streams_have_had_no_such_limit() {
    let mut w = World::new();
    for len in LENGTHS {
        let name = name(len, 1);
        w.number("RPUSH l % b", &[&name], 2);
        w.number("LPOS l %", &[&name], 0);
        w.number("LREM l 0 %", &[&name], 1);
        w.number("DEL l", &[], 1);
        if len < 4 << 20 {
            w.expect("XADD x 1-1 % v", &[&name], &bulk(b"1-1"));
            let entry = Reply::Array(vec![bulk(b"1-1"), bulks(&[&name, b"v"])]);
            w.expect("XRANGE x - +", &[], &Reply::Array(vec![entry]));
            w.number("DEL x", &[], 1);
        }
    }
    w.is_empty();
}

#[test]
fn a_long_field_has_a_deadline() {
    for len in [IN_KEY, IN_KEY + 1, 100_000] {
        let mut c = clocked();
        let name = name(len, 1);
        let mut run = |words: &str| {
            let words: Vec<&[u8]> = words
                .split(' ')
                .map(|word| if word == "%" { &name[..] } else { word.as_bytes() })
                .collect();
            show(&c.client.call(&words).expect("a reply"))
        };
        assert_eq!(run("HSET h % v stays v"), "(integer) 2");
        assert_eq!(run("HPEXPIRE h 10 FIELDS 1 %"), "[(integer) 1]");
        assert_eq!(run("HPTTL h FIELDS 1 %"), "[(integer) 10]");
        assert_eq!(run("COPY h copied"), "(integer) 1");
        assert_eq!(run("HPERSIST copied FIELDS 1 %"), "[(integer) 1]");
        assert_eq!(run("HSETEX set PX 10 FIELDS 1 % v"), "(integer) 1");
        assert_eq!(run("HGETEX set PX 20 FIELDS 1 %"), "[\"v\"]");
        c.clock.advance(Duration::from_millis(11));
        assert_eq!(run("HGET h %"), "(nil)");
        assert_eq!(run("HGETALL h"), "[\"stays\" \"v\"]");
        assert_eq!(run("HGET copied %"), "\"v\"");
        assert_eq!(run("HPTTL set FIELDS 1 %"), "[(integer) 9]");
        assert_eq!(run("HGETDEL copied FIELDS 1 %"), "[\"v\"]");
        c.clock.advance(Duration::from_millis(10));
        while run("DEBUG SWEEP") != "(integer) 0" {}
        assert_eq!(run("HLEN h"), "(integer) 1");
        assert_eq!(run("DEL h copied"), "(integer) 2");
        assert_eq!(run("EXISTS set"), "(integer) 0");
        while run("DEBUG SWEEP") != "(integer) 0" {}
        assert_eq!(tuples(&c.db), (0, 0), "nothing is left over");
    }
}

/// The version in the head of a key.
fn version(db: &Kvdb, key: &str) -> u8 {
    let types = db.dictionary(":types:0").expect("made");
    let head = db.view().get(types, &[&b"k"[..], key.as_bytes()].concat()).expect("read");
    head.expect("a collection")[0]
}

#[test]
fn a_collection_says_that_it_has_long_names_and_short_ones_are_as_before() {
    let mut w = World::new();
    let (short, long) = (name(IN_KEY, 1), name(IN_KEY + 1, 1));
    for (key, text) in [("h", "HSET h % v"), ("s", "SADD s %"), ("z", "ZADD z 1 %")] {
        w.number(text, &[&short], 1);
        assert_eq!(version(&w.served.db, key), 1);
        let types = w.served.db.dictionary(":types:0").expect("made");
        let all = w.served.db.view().scan(types, b"e", b"f", 100).expect("read");
        assert!(all.iter().any(|(tuple, _)| tuple[9] == 1 && tuple[10..] == short[..]), "{key}");
        w.number(text, &[&long], 1);
        assert_eq!(version(&w.served.db, key), 5);
        let payload = w.payload(key);
        w.ok("RESTORE again 100000 %", &[&payload]);
        assert_eq!(version(&w.served.db, "again"), 5, "with a deadline of the key");
        w.number("DEL again", &[], 1);
        if key == "h" {
            let one = Reply::Array(vec![Reply::Integer(1)]);
            w.expect("HEXPIRE h 1000 FIELDS 1 %", &[&long], &one);
            assert_eq!(version(&w.served.db, "h"), 6);
            let payload = w.payload("h");
            w.ok("RESTORE again 0 %", &[&payload]);
            assert_eq!(version(&w.served.db, "again"), 6);
            w.number("HSETEX new EX 1000 FIELDS 1 % v", &[&long], 1);
            assert_eq!(version(&w.served.db, "new"), 6);
            w.number("DEL again new", &[], 2);
        }
        w.number(&format!("DEL {key}"), &[], 1);
    }
    w.is_empty();
}

#[test]
fn a_name_is_never_taken_for_another_one_of_the_same_hash() {
    let mut w = World::new();
    let (name, other) = (like(b'n', "one"), like(b'n', "two"));
    w.number("SADD s %", &[&name], 1);
    // No two names with the same hash are known, so the test puts one name under the other's key.
    let types = w.served.db.dictionary(":types:0").expect("made");
    let all = w.served.db.view().scan(types, b"e", b"f", 100).expect("read");
    let (tuple, value) = all.into_iter().find(|(tuple, _)| tuple[9] == 1).expect("the member");
    let mut changed = value.to_vec();
    let at = changed.len() - 3;
    changed[at..].copy_from_slice(b"two");
    let mut batch = Batch::new();
    batch.put(types, tuple, changed);
    w.served.db.commit(batch, Durability::Buffered).expect("committed");
    let refused = "(error) ERR a field or member of 16387 bytes has the SHA-256 of another one";
    for text in ["SISMEMBER s %", "SADD s %", "SREM s %", "SMOVE s t %"] {
        let reply = show(&w.run(text, &[&name]));
        assert!(reply.starts_with(refused), "{text}: {}", &reply[..reply.len().min(200)]);
    }
    w.number("SADD t %", &[&name], 1);
    let reply = show(&w.run("SUNIONSTORE u s t", &[]));
    assert!(reply.starts_with(refused), "{}", &reply[..reply.len().min(200)]);
    w.expect("SMEMBERS s", &[], &bulks(&[&other]));
    w.number("DEL s t", &[], 2);
    w.is_empty();
}

#[test]
fn transactions_and_lists_of_changes_know_long_names() {
    let mut w = World::new();
    let (old, new) = (name(30_000, 1), name(30_000, 2));
    w.number("HSET h % value", &[&old], 1);
    w.number("ZADD z 1 %", &[&old], 1);
    w.number("SADD s %", &[&old], 1);
    let begin = |w: &mut World| {
        let Reply::Integer(id) = w.run("TXN BEGIN UNDOABLE LABEL long", &[]) else {
            panic!("no transaction")
        };
        w.ok(&format!("TXN JOIN {id}"), &[]);
    };
    let change = |w: &mut World| {
        w.number("HSET h % longer-value", &[&old], 0);
        w.number("ZADD z 2 % 3 %", &[&old, &new], 1);
        w.number("SREM s %", &[&old], 1);
        w.number("HSET hash % v", &[&new], 1);
    };
    begin(&mut w);
    change(&mut w);
    let Reply::Array(rows) = w.run("TXN CHANGES FIELDS", &[]) else { panic!("no rows") };
    let fields = |key: &str| {
        let row = rows.iter().find_map(|row| match row {
            Reply::Array(row) if row[2] == bulk(key.as_bytes()) => row.last(),
            _ => None,
        });
        row.unwrap_or_else(|| panic!("no row of {key}")).clone()
    };
    let field =
        |name: &[u8], before: Reply, now: Reply| Reply::Array(vec![bulk(name), before, now]);
    let len = |n: i64| Reply::Integer(n);
    assert!(fields("h") == Reply::Array(vec![field(&old, len(5), len(12))]));
    assert!(fields("s") == Reply::Array(vec![field(&old, len(0), Reply::Null)]));
    assert!(fields("hash") == Reply::Array(vec![field(&new, Reply::Null, len(1))]));
    let mut scores =
        [field(&old, bulk(b"1"), bulk(b"2")), field(&new, Reply::Null, bulk(b"3"))].to_vec();
    if old > new {
        scores.reverse();
    }
    assert!(fields("z") == Reply::Array(scores));
    let as_before = |w: &mut World| {
        w.expect("HGETALL h", &[], &bulks(&[&old, b"value"]));
        w.expect("ZRANGE z 0 -1 WITHSCORES", &[], &bulks(&[&old, b"1"]));
        w.expect("SMEMBERS s", &[], &bulks(&[&old]));
        w.number("EXISTS hash", &[], 0);
    };
    for key in ["h", "z", "s", "hash"] {
        w.ok(&format!("TXN REVERT KEY {key}"), &[]);
    }
    as_before(&mut w);
    change(&mut w);
    w.ok("TXN COMMIT", &[]);
    w.ok("TXN LEAVE", &[]);
    w.expect("HGET hash %", &[&new], &bulk(b"v"));
    w.expect("ZRANGE z 0 -1", &[], &bulks(&[&old, &new]));
    let Reply::Array(begun) = w.run("TXN UNDO ATTACHED", &[]) else { panic!("no undo") };
    assert_eq!(begun[3], Reply::Array(Vec::new()), "nothing stands against it");
    let Reply::Integer(id) = begun[0] else { panic!("no transaction") };
    w.ok(&format!("TXN COMMIT {id}"), &[]);
    as_before(&mut w);
    // Commands between MULTI and EXEC see each other's names.
    w.ok("MULTI", &[]);
    for text in ["SADD m %", "SISMEMBER m %", "SREM m %"] {
        w.expect(text, &[&new], &Reply::Status("QUEUED".into()));
    }
    let ones = Reply::Array(vec![len(1); 3]);
    w.expect("EXEC", &[], &ones);
    w.number("DEL h z s", &[], 3);
    w.is_empty();
}

#[test]
fn a_long_member_leads_to_no_key_when_a_set_is_sorted() {
    let mut w = World::new();
    w.number("SADD s %", &[&name(5_000_000, 1)], 1);
    let sort = "SORT s BY nosort GET a* GET b* GET c* GET *d GET *->e GET f*->g GET h* GET i*";
    let nothing = Reply::Array(vec![Reply::Null; 8]);
    w.expect(sort, &[], &nothing);
    // A commit depends on 32 MiB of keys at most.
    w.ok("MULTI", &[]);
    w.expect(sort, &[], &Reply::Status("QUEUED".into()));
    w.expect("EXEC", &[], &Reply::Array(vec![nothing]));
    w.number(&format!("{sort} STORE l"), &[], 8);
}

#[test]
fn a_command_that_fails_after_many_changes_leaves_none_in_exec() {
    let mut w = World::new();
    let members: Vec<String> = (0..12_000).map(|i| format!("member-{i:05}")).collect();
    w.number(&format!("SADD s {}", members.join(" ")), &[], 12_000);
    w.number("SADD s %", &[&like(b'n', "last")], 1);
    w.number("SADD t old", &[], 1);
    // The last member does not decode. The command finds that after more changes than it gathers.
    let types = w.served.db.dictionary(":types:0").expect("made");
    let all = w.served.db.view().scan(types, b"e", b"f", 20_000).expect("read");
    let (tuple, _) = all.into_iter().find(|(tuple, _)| tuple.len() > IN_KEY).expect("the member");
    let mut batch = Batch::new();
    batch.put(types, tuple, Vec::<u8>::new());
    w.served.db.commit(batch, Durability::Buffered).expect("committed");
    let unread = "CORRUPT the name of the element that begins with 'nnn";
    let reply = show(&w.run("SUNIONSTORE t s", &[]));
    assert!(reply.starts_with(&format!("(error) {unread}")), "{reply}");
    w.ok("MULTI", &[]);
    for text in ["SET before 1", "SUNIONSTORE t s", "SET after 1"] {
        w.expect(text, &[], &Reply::Status("QUEUED".into()));
    }
    let reply = show(&w.run("EXEC", &[]));
    assert!(reply.starts_with("(error) EXECABORT ") && reply.contains(unread), "{reply}");
    w.expect("SMEMBERS t", &[], &bulks(&[b"old"]));
    w.number("EXISTS before after", &[], 0);
    w.number("DEL s t", &[], 2);
    w.is_empty();
}

#[test]
fn the_first_long_name_is_not_undone_when_others_have_added_some() {
    let mut w = World::new();
    let (first, second) = (name(20_000, 1), name(20_000, 2));
    w.number("SADD s short", &[], 1);
    let Reply::Integer(id) = w.run("TXN BEGIN UNDOABLE", &[]) else { panic!("no transaction") };
    w.ok(&format!("TXN JOIN {id}"), &[]);
    w.number("SADD s %", &[&first], 1);
    w.ok("TXN COMMIT", &[]);
    w.ok("TXN LEAVE", &[]);
    w.number("SADD s %", &[&second], 1);
    let Reply::Array(begun) = w.run("TXN UNDO ATTACHED", &[]) else { panic!("no undo") };
    let Reply::Integer(id) = begun[0] else { panic!("no transaction") };
    let refused = show(&w.run(&format!("TXN COMMIT {id}"), &[]));
    assert!(refused.starts_with("(error) CONFLICT "), "{refused}");
    w.ok(&format!("TXN ABORT {id}"), &[]);
    w.number("SISMEMBER s %", &[&first], 1);
    w.number("SISMEMBER s %", &[&second], 1);
    assert_eq!(version(&w.served.db, "s"), 5);
}

#[test]
fn a_name_that_fits_into_no_value_is_refused() {
    const LONGEST: usize = (7 << 20) - 64;
    let mut w = World::new();
    let (longest, longer) = (name(LONGEST, 1), name(LONGEST + 1, 1));
    w.number("ZADD z 1 %", &[&longest], 1);
    w.number("SADD s %", &[&longest], 1);
    w.expect("SMEMBERS s", &[], &bulks(&[&longest]));
    w.expect("ZRANGE z 0 -1", &[], &bulks(&[&longest]));
    let refused = format!(
        "(error) ERR field or member of {} bytes is longer than the limit of {LONGEST}",
        LONGEST + 1
    );
    for text in ["ZADD z 1 %", "SADD s %", "HSET h % v", "HINCRBY h % 1", "GEOADD g 1 1 %"] {
        assert_eq!(show(&w.run(text, &[&longer])), refused, "{text}");
    }
    // A field and its value are one value of the store.
    let half = vec![b'v'; 4 << 20];
    let reply = show(&w.run("HSET h % %", &[&half, &half]));
    assert!(
        reply.starts_with("(error) ERR not possible: a value of 8388612 bytes; at most"),
        "{reply}"
    );
    w.number("EXISTS h g", &[], 0);
    w.number("DEL z s", &[], 2);
    w.is_empty();
}

#[test]
fn elements_that_are_gathered_have_a_limit_together_and_others_have_none() {
    let limits = Limits { request: 256 << 10, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let client = Client::connect(&served.path).expect("connected");
    let mut w = World { served, client };
    let names: Vec<Vec<u8>> = (0..8).map(|i| name(100_000, i)).collect();
    for name in &names {
        w.number("SADD s %", &[name], 1);
        w.number("ZADD z 1 %", &[name], 1);
    }
    for text in ["SPOP s 8", "SRANDMEMBER s 8", "ZPOPMIN z 8", "ZRANDMEMBER z 8", "ZUNION 1 z"] {
        let reply = show(&w.run(text, &[]));
        assert!(reply.starts_with("(error) LIMIT more than 262144 bytes"), "{text}");
    }
    let mut all: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    all.sort();
    w.expect("SMEMBERS s", &[], &bulks(&all));
    w.expect("ZRANGE z 0 -1", &[], &bulks(&all));
    w.expect("ZRANGEBYSCORE z 1 1", &[], &bulks(&all));
    w.number("SUNIONSTORE u s", &[], 8);
    w.number("ZREMRANGEBYSCORE z 1 1", &[], 8);
    w.number("DEL s u", &[], 2);
    w.is_empty();
}
