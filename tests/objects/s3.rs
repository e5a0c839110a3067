use std::path::Path;

use candle_headroom::data::{Dataset, Lines};
use candle_headroom::fixed_file::FixedFile;

use crate::server::Fault;
use crate::{PIECE, SERVER, bytes, quick, with};

#[test]
fn a_bucket_is_read() {
    let content = bytes(PIECE + 77);
    SERVER.put("bucket/folder/a b+c%25.bin", content.clone());
    // S3's keys are not decoded in a URL of ours, and are encoded on their way.
    SERVER.put("bucket/text", b"one\ntwo".to_vec());
    let lines = with(quick(), || Lines::open("s3://bucket/text")).unwrap();
    assert_eq!((lines.len(), lines.get(1).unwrap()), (2, "two".to_owned()));
    SERVER.put("bucket/large", content.clone());
    SERVER.fail(
        "bucket/large",
        [(1, Fault::Status(503)), (2, Fault::CutAfter(9))],
    );
    let file = with(quick(), || FixedFile::open(Path::new("s3://bucket/large"))).unwrap();
    assert!(file.read(0..file.len()).unwrap() == content);
    // The answer to a GET has a text.
    SERVER.fail("bucket/large", [(1, Fault::Status(403))]);
    let file = with(quick(), || FixedFile::open(Path::new("s3://bucket/large"))).unwrap();
    let error = file.read(0..9).unwrap_err();
    assert!(
        !format!("{error} {error:?}").contains("hunter"),
        "{error:?}"
    );
    assert_eq!(
        error.kind(),
        std::io::ErrorKind::PermissionDenied,
        "{error}"
    );
}
