//! Tests of the properties that a bucket reports, on a server with scripted answers.

use std::time::Duration;

use crate::canned::{Server, answer, error};
use objects::ObjectsError;
use objects_s3::{Effect, Said};

const RULES: &str = "<LifecycleConfiguration><Rule><ID>tidy</ID><Status>Enabled</Status><Filter>\
    <Prefix>some/</Prefix></Filter><Expiration><Days>30</Days></Expiration></Rule>\
    </LifecycleConfiguration>";

#[test]
fn settings_are_asked_for_by_their_names_and_told() {
    let server = Server::start(|request, _| match request.target.as_str() {
        "/bucket/?lifecycle" => answer(200, "", RULES),
        "/bucket/?versioning" => {
            let said = "<Status>Enabled</Status>";
            answer(200, "", &format!("<VersioningConfiguration>{said}</VersioningConfiguration>"))
        }
        "/bucket?list-type=2&max-keys=1&prefix=some%2Fprefix%2F" => {
            answer(200, "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n", "<ListBucketResult/>")
        }
        _ => error(400, "InvalidRequest"),
    });
    let objects = server.objects();
    let Ok(Said::Known(rules)) = objects.lifecycle() else { panic!("{:?}", server.requests()) };
    assert_eq!((rules[0].name.as_str(), &rules[0].effect), ("tidy", &Effect::Deletes));
    assert_eq!(objects.versioning().expect("an answer"), Said::Known(true));
    let time = objects.server_time().expect("an answer");
    assert_eq!(time, Some(Duration::from_secs(784_111_777)), "{:?}", server.requests());
    let reached = objects.reached();
    assert_eq!((reached.server, reached.credentials.as_str()), (server.url, "the environment"));
}

#[test]
fn what_a_bucket_does_not_tell_is_no_error() {
    for (status, code, lifecycle, versioning) in [
        (404, "NoSuchLifecycleConfiguration", Said::Known(0), Said::NotKnown),
        (403, "AccessDenied", Said::NotAllowed, Said::NotAllowed),
        (501, "NotImplemented", Said::NotKnown, Said::NotKnown),
        (405, "MethodNotAllowed", Said::NotKnown, Said::NotKnown),
    ] {
        let server = Server::start(move |_, _| error(status, code));
        let objects = server.objects();
        let count = match objects.lifecycle().expect("an answer") {
            Said::Known(rules) => Said::Known(rules.len()),
            Said::NotAllowed => Said::NotAllowed,
            Said::NotKnown => Said::NotKnown,
        };
        assert_eq!((count, code), (lifecycle, code));
        assert_eq!((objects.versioning().expect("an answer"), code), (versioning, code));
    }
    // Servers that know no settings may answer with a list.
    let server = Server::start(|_, _| answer(200, "", "<ListBucketResult></ListBucketResult>"));
    let objects = server.objects();
    assert_eq!(objects.lifecycle().expect("an answer"), Said::NotKnown);
    assert_eq!(objects.versioning().expect("an answer"), Said::NotKnown);
    assert_eq!(objects.server_time().expect("an answer"), None);
}

#[test]
fn another_region_and_a_missing_bucket_are_errors_that_say_so() {
    let region = "x-amz-bucket-region: there-2\r\n";
    let server = Server::start(move |_, _| answer(301, region, ""));
    let moved = server.objects().server_time().expect_err("it is elsewhere").to_string();
    assert!(moved.contains("region there-2; set AWS_REGION"), "{moved}");
    let server = Server::start(|_, _| error(404, "NoSuchBucket"));
    let missing = server.objects().server_time();
    assert!(matches!(missing, Err(ObjectsError::NoBucket { .. })), "{missing:?}");
    let skewed = Server::start(|_, _| error(403, "RequestTimeTooSkewed"));
    let skewed = skewed.objects().server_time().expect_err("it is refused").to_string();
    assert!(skewed.contains("the clocks"), "{skewed}");
}
