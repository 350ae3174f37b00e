//! Keys and tokens appear in no error and in no `Debug` output, and credentials are read from the
//! usual places of other tools.

use crate::canned;
use std::time::Duration;

use crate::canned::{ID, Reply, Request, SECRET, Server, TOKEN, answer, environment, error};
use objects::{Condition, Key, Objects, ObjectsError, Part, Tag};
use objects_s3::{Environment, S3Config, S3Objects, Timeouts};

/// Fails if the text has a secret, or something of a signature.
fn assert_clean(text: &str) {
    for secret in [SECRET, TOKEN, "hidden", "Signature=", "AWS4-HMAC", "StringToSign"] {
        assert!(!text.contains(secret), "{secret} is in: {text}");
    }
}

/// Calls everything, and looks at all errors.
fn assert_all_clean(objects: &S3Objects) {
    let key = Key::new("a/b").expect("a key");
    let errors = [
        objects.get(&key, Part::Whole).err(),
        objects.get(&key, Part::Range(5..9)).err(),
        objects.put(&key, "x".into(), Condition::Always).err(),
        objects.put(&key, "x".into(), Condition::Absent).err(),
        objects.put(&key, "x".into(), Condition::Matches(Tag::new("t"))).err(),
        objects.delete(&key).err(),
        objects.list("a/", "a/b").err(),
    ];
    assert!(errors.iter().flatten().count() >= 6, "{errors:?}");
    for error in errors.into_iter().flatten() {
        assert_clean(&format!("{error} {error:?} {error:#?}"));
    }
    assert_clean(&format!("{objects:?} {objects:#?} {}", objects.place()));
}

#[test]
fn no_kind_of_error_has_a_secret() {
    let codes = [
        (404, "NoSuchKey"),
        (404, "NoSuchBucket"),
        (404, ""),
        (412, "PreconditionFailed"),
        (409, "OperationAborted"),
        (403, "SignatureDoesNotMatch"),
        (400, "ExpiredToken"),
        (400, "InvalidArgument"),
        (400, "BadDigest"),
        (400, SECRET),
        (429, ""),
        (416, "InvalidRange"),
        (500, "InternalError"),
        (503, "SlowDown"),
        (301, "PermanentRedirect"),
    ];
    for (status, code) in codes {
        let headers =
            format!("Location: http://user:{SECRET}@host/\r\nx-amz-bucket-region: {SECRET}\r\n");
        let server = Server::start(move |_, _| answer(status, &headers, &canned::error_body(code)));
        assert_all_clean(&server.objects());
    }
    let malformed = Server::start(|_, _| answer(200, &format!("ETag: \u{1}{SECRET}\r\n"), TOKEN));
    assert_all_clean(&malformed.objects());
    let cut = Server::start(|_, _| Reply::Close);
    assert_all_clean(&cut.objects());
    let silent = Server::start(|_, _| Reply::Silence);
    let request = Duration::from_millis(100);
    let config =
        S3Config { timeouts: Timeouts { request, ..Timeouts::default() }, ..silent.config() };
    assert_all_clean(&S3Objects::new(&config, &environment()).expect("it is a place"));
    let tls = S3Config { endpoint: Some(cut.url.replace("http:", "https:")), ..cut.config() };
    assert_all_clean(&S3Objects::new(&tls, &environment()).expect("it is a place"));
    let nothing = S3Config { endpoint: Some("http://127.0.0.1:1".into()), ..cut.config() };
    assert_all_clean(&S3Objects::new(&nothing, &environment()).expect("it is a place"));
}

#[test]
fn a_configuration_and_an_environment_show_no_secret() {
    let server = Server::start(|_, _| Reply::Close);
    assert_clean(&format!("{:?} {:?}", server.config(), environment()));
}

#[test]
fn wrong_settings_are_told_without_their_values() {
    let two = |name: &'static str, value: &str| {
        Environment::of([("AWS_ACCESS_KEY_ID", ID), (name, value)])
    };
    let newline = format!("{SECRET}\n");
    let cases = [
        Environment::of([("AWS_SECRET_ACCESS_KEY", SECRET)]),
        Environment::of([("AWS_ACCESS_KEY_ID", SECRET)]),
        two("AWS_SECRET_ACCESS_KEY", &newline),
        two("AWS_ENDPOINT_URL", &format!("https://user:{SECRET}@host")),
        two("AWS_CA_BUNDLE", "/nonexistent"),
        Environment::of([("AWS_EC2_METADATA_DISABLED", "true")]),
    ];
    for environment in cases {
        let error = S3Objects::from_address("s3://bucket", &environment).expect_err("it is wrong");
        assert_clean(&format!("{error} {error:?}"));
        assert!(matches!(error, ObjectsError::Invalid(_)), "{error:?}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("credentials");
    let name = file.to_str().expect("a text");
    for (text, found) in [
        (format!("[default]\naws_access_key_id = {ID}\n{SECRET}\n"), "line 3"),
        (format!("[default]\naws_access_key_id = {ID}\n"), "aws_secret_access_key"),
        (format!("[default]\ncredential_process = /bin/echo {SECRET}\n"), "credential_process"),
    ] {
        std::fs::write(&file, text).expect("a file");
        let environment = Environment::of([("AWS_SHARED_CREDENTIALS_FILE", name)]);
        let error = S3Objects::from_address("s3://bucket", &environment).expect_err("it is wrong");
        assert_clean(&format!("{error} {error:?}"));
        assert!(error.to_string().contains(found), "{error}");
    }
}

/// The key by which a request is signed.
fn signer(request: &Request) -> String {
    let authorization = request.header("authorization").unwrap_or("Credential=none/");
    let (_, rest) = authorization.split_once("Credential=").expect("it is signed");
    rest.split('/').next().expect("a key").to_string()
}

fn read(config: &S3Config, environment: &Environment) -> objects::Result<objects::Object> {
    let objects = S3Objects::new(config, environment).expect("it is a place");
    objects.get(&Key::new("a").expect("a key"), Part::Whole)
}

/// Variables, the key that signs with them, and the token that is sent.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, Option<&'a str>);

#[test]
fn the_environment_goes_before_the_profile() {
    let server = Server::start(|_, _| answer(200, "ETag: \"t\"\r\n", "x"));
    let folder = tempfile::tempdir().expect("a folder");
    let aws = folder.path().join(".aws");
    std::fs::create_dir(&aws).expect("it is new");
    let text = "[default]\naws_access_key_id = D\naws_secret_access_key = d\n\
                [work]\naws_access_key_id = W\naws_secret_access_key = w\naws_session_token = t\n";
    std::fs::write(aws.join("credentials"), text).expect("a file");
    let home = ("HOME", folder.path().to_str().expect("a text"));
    let keys = [("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "e")];
    let cases: [Case<'_>; 5] = [
        (&[home], "D", None),
        (&[home, ("AWS_PROFILE", "work")], "W", Some("t")),
        (&[home, ("AWS_PROFILE", "work"), keys[0], keys[1]], "E", None),
        (&[keys[0], keys[1], ("AWS_SESSION_TOKEN", "s")], "E", Some("s")),
        (&[home, ("AWS_SKIP_SIGNATURE", "true")], "none", None),
    ];
    for (n, (variables, id, token)) in cases.into_iter().enumerate() {
        let environment = Environment::of(variables.iter().copied());
        read(&server.config(), &environment).expect("it is answered");
        let request = &server.requests()[n];
        assert_eq!(signer(request), id);
        assert_eq!(request.header("x-amz-security-token"), token);
    }
}

#[test]
fn the_instance_gives_credentials() {
    let metadata = Server::start(|request, _| match request.target.as_str() {
        "/latest/api/token" => answer(200, "", "token"),
        "/latest/meta-data/iam/security-credentials/" => answer(200, "", "role"),
        "/latest/meta-data/iam/security-credentials/role" => answer(
            200,
            "",
            "{\"Code\":\"Success\",\"AccessKeyId\":\"I\",\"SecretAccessKey\":\"i\",\
             \"Token\":\"of-the-instance\",\"Expiration\":\"2199-01-01T00:00:00Z\",\
             \"LastUpdated\":\"2026-01-01T00:00:00Z\",\"Type\":\"AWS-HMAC\"}",
        ),
        _ => error(404, "None"),
    });
    let server = Server::start(|_, _| answer(200, "ETag: \"t\"\r\n", "x"));
    let environment =
        Environment::of([("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.url.as_str())]);
    let objects = S3Objects::new(&server.config(), &environment).expect("it is a place");
    for _ in 0..3 {
        objects.get(&Key::new("a").expect("a key"), Part::Whole).expect("it is answered");
    }
    assert_eq!(metadata.requests().len(), 3, "they are kept");
    let request = &server.requests()[0];
    assert_eq!(signer(request), "I");
    assert_eq!(request.header("x-amz-security-token"), Some("of-the-instance"));
}

#[test]
fn without_credentials_nothing_is_sent() {
    let metadata = Server::start(|_, _| error(404, SECRET));
    let server = Server::start(|_, _| answer(200, "ETag: \"t\"\r\n", "x"));
    let environment =
        Environment::of([("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.url.as_str())]);
    let error = read(&server.config(), &environment).expect_err("there are no credentials");
    assert!(matches!(error, ObjectsError::Denied { .. }), "{error:?}");
    assert_clean(&format!("{error} {error:?}"));
    assert!(server.requests().is_empty());
}
