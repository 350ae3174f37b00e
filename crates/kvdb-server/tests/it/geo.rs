//! Tests of places in sorted sets: adding them, searching around a place, and the format of the
//! results. The expected numbers are those of Redis 7.0.

use crate::served::{serve, show};
use kvdb_server::ServerOptions;

const WRONGTYPE: &str = "(error) WRONGTYPE Operation against a key holding the wrong kind of value";
const SYNTAX: &str = "(error) ERR syntax error";

#[test]
fn places_are_added_and_told() {
    serve(ServerOptions::default()).connect().expect(&[
        ("GEOADD g 13.361389 38.115556 Palermo 15.087269 37.502669 Catania", "(integer) 2"),
        ("ZSCORE g Palermo", "\"3479099956230698\""),
        (
            "ZRANGE g 0 -1 WITHSCORES",
            "[\"Palermo\" \"3479099956230698\" \"Catania\" \"3479447370796909\"]",
        ),
        ("GEODIST g Palermo Catania", "\"166274.1516\""),
        ("GEODIST g Palermo Catania km", "\"166.2742\""),
        ("GEODIST g Palermo Catania mi", "\"103.3182\""),
        ("GEODIST g Palermo Catania ft", "\"545518.8700\""),
        ("GEODIST g Palermo nowhere", "(nil)"),
        ("GEODIST none Palermo Catania", "(nil)"),
        (
            "GEODIST g Palermo Catania parsec",
            "(error) ERR unsupported unit provided. please use M, KM, FT, MI",
        ),
        ("GEOPOS g Palermo nowhere", "[[\"13.36138933897018433\" \"38.11555639549629859\"] (nil)]"),
        ("GEOPOS none Palermo", "[(nil)]"),
        ("GEOPOS g", "[]"),
        ("GEOHASH g Palermo Catania nowhere", "[\"sqc8b49rny0\" \"sqdtr74hyu0\" (nil)]"),
        ("GEOADD g NX 0 0 Palermo", "(integer) 0"),
        ("GEOADD g XX CH 0 0 Palermo 1 1 none", "(integer) 1"),
        ("ZCARD g", "(integer) 2"),
        ("GEOADD g NX XX 0 0 a", SYNTAX),
        ("GEOADD g 0 0 a 1 1", SYNTAX),
        ("GEOADD g 200 86 a", "(error) ERR invalid longitude,latitude pair 200.000000,86.000000"),
        ("GEOADD g x 0 a", "(error) ERR value is not a valid float"),
        ("SET s v", "OK"),
        ("GEOADD s 0 0 a", WRONGTYPE),
        ("GEOPOS s a", WRONGTYPE),
    ]);
}

#[test]
fn places_are_found_around_a_place() {
    serve(ServerOptions::default()).connect().expect(&[
        ("GEOADD g 13.361389 38.115556 Palermo 15.087269 37.502669 Catania", "(integer) 2"),
        ("GEOADD g 12.758489 38.788135 edge1 17.241510 38.788135 edge2", "(integer) 2"),
        ("GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km ASC", "[\"Catania\" \"Palermo\"]"),
        (
            "GEOSEARCH g FROMLONLAT 15 37 BYBOX 400 400 km ASC WITHCOORD WITHDIST",
            "[[\"Catania\" \"56.4413\" [\"15.08726745843887329\" \"37.50266842333162032\"]] \
             [\"Palermo\" \"190.4424\" [\"13.36138933897018433\" \"38.11555639549629859\"]] \
             [\"edge2\" \"279.7403\" [\"17.24151045083999634\" \"38.78813451624225195\"]] \
             [\"edge1\" \"279.7405\" [\"12.7584877610206604\" \"38.78813451624225195\"]]]",
        ),
        (
            "GEORADIUS g 15 37 200 km DESC WITHHASH",
            "[[\"Palermo\" (integer) 3479099956230698] [\"Catania\" (integer) 3479447370796909]]",
        ),
        ("GEORADIUS g 15 37 1000 km COUNT 1", "[\"Catania\"]"),
        ("GEORADIUS_RO g 15 37 200 km COUNT 2 ANY ASC", "[\"Catania\" \"Palermo\"]"),
        ("GEORADIUSBYMEMBER g Catania 1 m", "[\"Catania\"]"),
        ("GEORADIUSBYMEMBER_RO g none 1 m", "(error) ERR could not decode requested zset member"),
        ("GEOSEARCH g FROMMEMBER Palermo BYRADIUS 0 m", "[\"Palermo\"]"),
        ("GEOSEARCH none FROMMEMBER Palermo BYRADIUS 1 m", "[]"),
        ("GEORADIUSBYMEMBER none a x y", "[]"),
        ("GEOSEARCH g FROMMEMBER Palermo FROMLONLAT 1 1 BYRADIUS 1 m", SYNTAX),
        (
            "GEOSEARCH g BYRADIUS 1 m ASC ASC ASC",
            "(error) ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for GEOSEARCH",
        ),
        (
            "GEOSEARCH g FROMMEMBER Palermo ASC ASC ASC",
            "(error) ERR exactly one of BYRADIUS and BYBOX can be specified for GEOSEARCH",
        ),
        ("GEORADIUS g 15 37 -1 km", "(error) ERR radius cannot be negative"),
        ("GEORADIUS g 15 37 x km", "(error) ERR need numeric radius"),
        ("GEORADIUS g 15 37 1 km COUNT 0", "(error) ERR COUNT must be > 0"),
        ("GEORADIUS g 15 37 1 km ANY", "(error) ERR the ANY argument requires COUNT argument"),
        ("GEORADIUS_RO g 15 37 1 km STORE x", SYNTAX),
    ]);
}

#[test]
fn what_is_found_is_stored() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("GEOADD g 13.361389 38.115556 Palermo 15.087269 37.502669 Catania", "(integer) 2"),
        ("GEOSEARCHSTORE to g FROMLONLAT 15 37 BYRADIUS 200 km", "(integer) 2"),
        ("ZRANGE to 0 -1 WITHSCORES", "[\"Palermo\" \"3479099956230698\" \"Catania\" \"3479447370796909\"]"),
        ("GEOSEARCHSTORE to g FROMLONLAT 15 37 BYRADIUS 100 km STOREDIST", "(integer) 1"),
        ("ZRANGE to 0 -1", "[\"Catania\"]"),
        ("GEORADIUS g 15 37 200 km STORE a STOREDIST to", "(integer) 2"),
        ("EXISTS a", "(integer) 0"),
        ("ZRANGE to 0 -1", "[\"Catania\" \"Palermo\"]"),
        ("GEORADIUSBYMEMBER g Catania 1 m STORE g", "(integer) 1"),
        ("ZRANGE g 0 -1", "[\"Catania\"]"),
        ("GEORADIUS g 0 0 1 m STORE to", "(integer) 0"),
        ("EXISTS to", "(integer) 0"),
        ("GEORADIUS g 0 0 1 m WITHDIST STORE to", "(error) ERR STORE option in GEORADIUS is not compatible with WITHDIST, WITHHASH and WITHCOORD options"),
        ("COMMAND GETKEYS GEORADIUS g 0 0 1 m COUNT 3 STORE to", "[\"g\" \"to\"]"),
        ("COMMAND GETKEYS GEORADIUSBYMEMBER g a 1 m STORE x STOREDIST to", "[\"g\" \"to\"]"),
        ("COMMAND GETKEYS GEOSEARCHSTORE to g FROMMEMBER a BYRADIUS 1 m", "[\"to\" \"g\"]"),
        // Together with other commands, and not at all.
        ("MULTI", "OK"),
        ("GEOADD m 1 1 a", "QUEUED"),
        ("GEORADIUS m 1 1 1 km STORE n", "QUEUED"),
        ("GEOPOS n a", "QUEUED"),
        ("EXEC", "[(integer) 1 (integer) 1 [[\"0.99999994039535522\" \"0.99999945914297683\"]]]"),
    ]);
    let id = c.run("TXN BEGIN").replace("(integer) ", "");
    c.run(&format!("TXN JOIN {id}"));
    c.expect(&[
        ("GEOADD m 2 2 b", "(integer) 1"),
        ("GEOSEARCH m FROMLONLAT 1 1 BYRADIUS 1000 km DESC", "[\"b\" \"a\"]"),
        ("TXN ABORT", "OK"),
        ("GEOSEARCH m FROMLONLAT 1 1 BYRADIUS 1000 km DESC", "[\"a\"]"),
    ]);
    // In RESP3, coordinates are numbers, and distances remain texts.
    c.run("HELLO 3");
    c.send(b"GEORADIUS m 1 1 1 km WITHDIST WITHCOORD\r\n");
    assert_eq!(
        show(&c.reply().expect("a reply")),
        "[[\"a\" \"0.0001\" [\"0.99999994039535522\" \"0.99999945914297683\"]]]"
    );
}
