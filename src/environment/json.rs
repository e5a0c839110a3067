//! The report as data. A field that is here keeps its name and its meaning as long as the schema's number stays.

use serde::{Serialize, Serializer};

use super::finding::Finding;
use super::report::{Gpu, Report};

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    /// This crate's.
    version: &'static str,
    summary: &'a str,
    gpus: &'a [Gpu],
    findings: &'a [Finding],
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let document = Document {
            schema: 1,
            version: env!("CARGO_PKG_VERSION"),
            summary: self.summary(),
            gpus: self.gpus(),
            findings: self.findings(),
        };
        document.serialize(serializer)
    }
}
