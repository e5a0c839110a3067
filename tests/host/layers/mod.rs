//! `LayerMemory` on the host.

mod bytes;
mod exhaustion;
mod paths;
#[path = "../../support/spanned.rs"]
mod spanned;
mod steps;
mod training;

use candle_headroom::DeviceMemory;
use candle_headroom::layers::{LayerMemory, LayerReport, LayerRow, RowKind};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry;

/// Runs `work` with a new `LayerMemory` installed on this thread.
fn watched<T>(work: impl FnOnce(&LayerMemory) -> T) -> T {
    let layers = LayerMemory::new(&DeviceMemory::host().open().unwrap());
    let subscriber = registry().with(layers.layer());
    tracing::subscriber::with_default(subscriber, || work(&layers))
}

/// The layers' names, sorted.
fn names(report: &LayerReport) -> Vec<String> {
    let layers = report.rows.iter().filter(|row| row.kind == RowKind::Layer);
    let mut names: Vec<_> = layers.map(LayerRow::name).collect();
    names.sort();
    names
}

/// The row of this name.
fn row<'a>(report: &'a LayerReport, name: &str) -> &'a LayerRow {
    let found = report.rows.iter().find(|row| row.name() == name);
    found.unwrap_or_else(|| panic!("no row `{name}` in {:#?}", names(report)))
}
