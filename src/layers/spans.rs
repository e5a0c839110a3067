use std::sync::Arc;

use tracing::{Subscriber, span};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::shared::Shared;

/// A [`Layer`] for one subscriber, made by [`LayerMemory::layer`](super::LayerMemory::layer).
#[derive(Debug)]
pub struct SpanLayer {
    shared: Arc<Shared>,
    number: u32,
}

impl SpanLayer {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let number = shared.next_layer();
        Self { shared, number }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanLayer {
    fn on_enter(&self, id: &span::Id, context: Context<'_, S>) {
        // A model creates its spans once, so the spans around one that is entered are not its parents in the registry.
        let name = || context.metadata(id).map(|metadata| metadata.name());
        self.shared.enter((self.number, id.into_u64()), name);
    }

    fn on_exit(&self, id: &span::Id, _: Context<'_, S>) {
        self.shared.exit((self.number, id.into_u64()));
    }

    fn on_close(&self, id: span::Id, _: Context<'_, S>) {
        self.shared.close((self.number, id.into_u64()));
    }
}
