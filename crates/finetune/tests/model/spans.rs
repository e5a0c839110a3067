//! The spans by which memory is attributed to layers.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber, subscriber};

use super::compared::whole;
use super::{case, text};

/// Notes the paths of the spans that are entered.
#[derive(Default)]
struct Paths {
    count: AtomicU64,
    names: Mutex<Vec<&'static str>>,
    entered: Mutex<Vec<&'static str>>,
    paths: Arc<Mutex<Vec<String>>>,
}

impl Subscriber for Paths {
    fn enabled(&self, metadata: &Metadata) -> bool {
        metadata.is_span()
            && metadata
                .module_path()
                .is_some_and(|path| path.contains("finetune"))
    }

    fn new_span(&self, span: &Attributes) -> Id {
        self.names.lock().unwrap().push(span.metadata().name());
        Id::from_u64(1 + self.count.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, _: &Record) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event) {}

    fn enter(&self, span: &Id) {
        let name = self.names.lock().unwrap()[span.into_u64() as usize - 1];
        let mut entered = self.entered.lock().unwrap();
        entered.push(name);
        self.paths.lock().unwrap().push(entered.join("."));
    }

    fn exit(&self, _: &Id) {
        self.entered.lock().unwrap().pop();
    }
}

/// In a process of its own: tracing asks subscribers once for each span in the code, and while there is only one subscriber, another
/// test's thread that comes to a span first has none to ask, and turns it off for all.
#[test]
fn layers_have_their_names_in_transformers() {
    const CHILD: &str = "HEADROOM_SPANS_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return paths_are_those_of_transformers();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "spans::layers_have_their_names_in_transformers"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

fn paths_are_those_of_transformers() {
    let mut decoder = whole(&case("llama-2")).unwrap().decoder;
    decoder.marks_blocks = false;
    let paths = Arc::<Mutex<Vec<String>>>::default();
    let spans = Paths {
        paths: Arc::clone(&paths),
        ..Paths::default()
    };
    subscriber::with_default(spans, || decoder.forward(&text(&[1, 2, 3])).unwrap());
    let expected = [
        "model",
        "model.layers.0",
        "model.layers.0.self_attn",
        "model.layers.0.mlp",
        "model.layers.1",
        "model.layers.1.self_attn",
        "model.layers.1.mlp",
    ];
    assert_eq!(*paths.lock().unwrap(), expected);
}
