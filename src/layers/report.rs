use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::path::Place;
use super::unit::{Unit, Work};
use crate::error::{Holding, Phase};

/// Which layers held the memory when its use was highest, and what each layer took; from [`LayerMemory`](super::LayerMemory).
///
/// It is about one micro-batch, or update: the one with the highest use in a step. `{}` writes the folded table of the largest rows;
/// [`table`](Self::table) any other.
///
/// ```
/// # use candle_headroom::layers::{LayerReport, LayerRow};
/// # let mut row = LayerRow::default();
/// # row.spans = vec!["model".to_owned(), "block.3".to_owned()];
/// # row.calls = 1;
/// # row.at_peak = Some(8 << 20);
/// # let mut report = LayerReport::default();
/// # report.peak = Some(10 << 20);
/// # report.rows = vec![row];
/// // `report` is from `LayerMemory::report`: `model.block.3` held 8 MiB of 10 MiB.
/// assert_eq!((report.rows[0].at_peak, report.peak), (Some(8 << 20), Some(10 << 20)));
/// assert_eq!(report.attributed(), Some(0.8));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LayerReport {
    /// The work; `None` in a loop of your own.
    pub work: Option<Work>,
    /// The highest use, in bytes; `None` if it is not counted.
    pub peak: Option<u64>,
    /// Where the use was highest: a phase, then spans.
    pub peak_at: Vec<String>,
    /// What took part, the largest at the peak first. Their [`at_peak`](LayerRow::at_peak) sum up to the peak.
    pub rows: Vec<LayerRow>,
}

/// A layer, or something else that holds memory.
///
/// ```
/// use candle_headroom::layers::LayerRow;
///
/// /// Bytes of activations of each call, on average.
/// fn activations(row: &LayerRow) -> Option<i64> {
///     Some(row.held? / row.calls as i64)
/// }
///
/// let mut row = LayerRow::default(); // or one of `LayerReport::rows`
/// (row.calls, row.held) = (4, Some(4096));
/// assert_eq!(activations(&row), Some(1024));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LayerRow {
    /// What it is.
    pub kind: RowKind,
    /// The phase in which it ran; `None` outside a trainer.
    pub phase: Option<Phase>,
    /// Names, the outermost first: of spans, or the one name of anything else. Spans of one name and parent are numbered, as in
    /// `block.3`.
    pub spans: Vec<String>,
    /// Number of calls.
    pub calls: u64,
    /// Bytes that it held at the peak, without the layers within it.
    pub at_peak: Option<u64>,
    /// Bytes allocated in it and still held when its calls ended, with the layers within it; for training, its activations. Below
    /// 0 if it freed more.
    pub held: Option<i64>,
    /// The same without the layers within it.
    pub own_held: Option<i64>,
    /// The highest use during a call, above that at the call's beginning.
    pub highest: Option<u64>,
    /// Host time of its calls, with the layers within it.
    pub time: Duration,
    /// The same without the layers within it.
    pub own_time: Duration,
}

/// What a [`LayerRow`] is.
///
/// ```
/// # use candle_headroom::layers::{LayerReport, LayerRow};
/// use candle_headroom::layers::RowKind;
///
/// # let mut row = LayerRow::default();
/// # row.spans = vec!["model".to_owned(), "block.3".to_owned()];
/// # row.calls = 1;
/// # row.at_peak = Some(8 << 20);
/// # let mut report = LayerReport::default();
/// # report.peak = Some(10 << 20);
/// # report.rows = vec![row];
/// // `report` is from `LayerMemory::report`: `model.block.3` held 8 MiB of 10 MiB.
/// let layers = report.rows.iter().filter(|row| row.kind == RowKind::Layer);
/// assert_eq!(layers.count(), 1);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RowKind {
    /// A span, which a model opens for a layer.
    #[default]
    Layer,
    /// A phase of the step, outside of all layers: in the backward pass gradients and temporary tensors.
    Phase,
    /// What a trainer held when the micro-batch began: parameters, accumulated gradients, optimizer state.
    Held,
    /// The rest of what the process held: the batch, data, other models. Not attributed.
    Rest,
}

impl LayerRow {
    /// The names joined by dots, as in `model.block.3.mlp`; with the phase where it is not the forward pass.
    ///
    /// ```
    /// # use candle_headroom::layers::{LayerReport, LayerRow};
    /// # let mut row = LayerRow::default();
    /// # row.spans = vec!["model".to_owned(), "block.3".to_owned()];
    /// # row.calls = 1;
    /// # row.at_peak = Some(8 << 20);
    /// # let mut report = LayerReport::default();
    /// # report.peak = Some(10 << 20);
    /// # report.rows = vec![row];
    /// // `report` is from `LayerMemory::report`: `model.block.3` held 8 MiB of 10 MiB.
    /// assert_eq!(report.rows[0].name(), "model.block.3");
    /// ```
    pub fn name(&self) -> String {
        let name = self.spans.join(".");
        match (self.kind, self.phase) {
            (RowKind::Layer, Some(phase)) if phase != Phase::Forward => format!("{name} ({phase})"),
            (RowKind::Phase, Some(Phase::Forward)) => format!("{name}, outside of layers"),
            _ => name,
        }
    }

    /// Whether its bytes are known to belong to something. In the forward pass, what lies outside of layers does not.
    ///
    /// ```
    /// use candle_headroom::layers::{LayerRow, RowKind};
    ///
    /// let mut row = LayerRow::default(); // of a layer
    /// assert!(row.is_attributed());
    /// row.kind = RowKind::Rest;
    /// assert!(!row.is_attributed());
    /// ```
    pub fn is_attributed(&self) -> bool {
        match self.kind {
            RowKind::Layer | RowKind::Held => true,
            RowKind::Phase => !matches!(self.phase, None | Some(Phase::Forward)),
            RowKind::Rest => false,
        }
    }

    fn add(&mut self, other: &Self) {
        let sum = |a: Option<i64>, b: Option<i64>| Some(a? + b?);
        self.calls += other.calls;
        self.at_peak = self.at_peak.zip(other.at_peak).map(|(a, b)| a + b);
        self.held = sum(self.held, other.held);
        self.own_held = sum(self.own_held, other.own_held);
        self.highest = self.highest.max(other.highest);
        self.time += other.time;
        self.own_time += other.own_time;
    }
}

impl LayerReport {
    pub(super) fn of(unit: &Unit) -> Self {
        let known = unit.is_measured.then_some(());
        let mut held: HashMap<Place, u64> = HashMap::new();
        for (place, bytes) in unit.ledger.at_peak().filter(|(_, bytes)| *bytes > 0) {
            *held.entry(place).or_default() += bytes;
        }
        let mut rows = Vec::new();
        for (place, calls) in unit.stats.iter() {
            rows.push(LayerRow {
                calls: calls.count,
                at_peak: known.map(|()| held.remove(&place).unwrap_or(0)),
                held: known.map(|()| calls.held),
                own_held: known.map(|()| calls.own),
                highest: known.map(|()| calls.highest),
                time: calls.time,
                own_time: calls.own_time,
                ..LayerRow::at(place)
            });
        }
        rows.extend(held.into_iter().map(|(place, bytes)| LayerRow {
            at_peak: Some(bytes),
            ..LayerRow::at(place)
        }));
        rows.extend(before(unit));
        let Place { phase, spans } = unit.ledger.peak.excess.0;
        let phase = phase.map(|phase| phase.to_string());
        let mut report = Self {
            work: unit.work,
            peak: known.map(|()| unit.ledger.peak.bytes),
            peak_at: phase.into_iter().chain(spans.names()).collect(),
            rows,
        };
        report.sort();
        report
    }

    /// Whether no layer was seen: no span was entered, since none was created while the layer of
    /// [`LayerMemory`](super::LayerMemory) was installed.
    ///
    /// ```
    /// use candle_headroom::layers::LayerReport;
    ///
    /// assert!(LayerReport::default().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.rows.iter().all(|row| row.kind != RowKind::Layer)
    }

    /// The share of the highest use that is known to belong to a layer, to a phase outside of layers, or to what a trainer holds; from 0
    /// to 1. `None` if memory is not counted.
    ///
    /// ```
    /// # use candle_headroom::layers::{LayerReport, LayerRow};
    /// # let mut row = LayerRow::default();
    /// # row.spans = vec!["model".to_owned(), "block.3".to_owned()];
    /// # row.calls = 1;
    /// # row.at_peak = Some(8 << 20);
    /// # let mut report = LayerReport::default();
    /// # report.peak = Some(10 << 20);
    /// # report.rows = vec![row];
    /// // `report` is from `LayerMemory::report`: `model.block.3` held 8 MiB of 10 MiB.
    /// assert_eq!(report.attributed(), Some(0.8));
    /// ```
    pub fn attributed(&self) -> Option<f64> {
        let attributed = self.rows.iter().filter(|row| row.is_attributed());
        let bytes: u64 = attributed.filter_map(|row| row.at_peak).sum();
        let peak = self.peak.filter(|peak| *peak > 0)?;
        Some(bytes as f64 / peak as f64)
    }

    /// The report with numbered layers put together: `block.0.mlp`, `block.1.mlp` and so on become `block.*.mlp`.
    ///
    /// ```
    /// # use candle_headroom::layers::{LayerReport, LayerRow};
    /// # let mut row = LayerRow::default();
    /// # row.spans = vec!["model".to_owned(), "block.3".to_owned()];
    /// # row.calls = 1;
    /// # row.at_peak = Some(8 << 20);
    /// # let mut report = LayerReport::default();
    /// # report.peak = Some(10 << 20);
    /// # report.rows = vec![row];
    /// // `report` is from `LayerMemory::report`: `model.block.3` held 8 MiB of 10 MiB.
    /// assert_eq!(report.folded().rows[0].name(), "model.block.*");
    /// ```
    pub fn folded(&self) -> Self {
        let mut folded: Vec<LayerRow> = Vec::new();
        for row in &self.rows {
            let mut row = row.clone();
            row.spans.iter_mut().for_each(fold);
            let key = (row.kind, row.phase, &row.spans);
            let mut known = folded.iter_mut();
            match known.find(|known| (known.kind, known.phase, &known.spans) == key) {
                Some(known) => known.add(&row),
                None => folded.push(row),
            }
        }
        let mut report = Self {
            rows: folded,
            ..self.clone()
        };
        report.sort();
        report
    }

    /// The largest layers and phases, folded, with their bytes at the peak.
    pub(crate) fn largest(&self, count: usize) -> Vec<Holding> {
        let rows = match self.is_empty() {
            true => Vec::new(),
            false => self.folded().rows,
        };
        let known = rows.iter().filter_map(|row| Some((row, row.at_peak?)));
        let is_known = |row: &LayerRow| row.is_attributed() && row.kind != RowKind::Held;
        let known = known.filter(|(row, bytes)| is_known(row) && *bytes > 0);
        let largest = known.map(|(row, bytes)| Holding::new(row.name(), bytes));
        largest.take(count).collect()
    }

    /// By bytes, then by time; where both are equal in the order of calls.
    fn sort(&mut self) {
        self.rows
            .sort_by_key(|row| std::cmp::Reverse((row.at_peak, row.own_time)));
    }
}

impl LayerRow {
    fn at(place: Place) -> Self {
        let mut spans = place.spans.names();
        let kind = match spans.is_empty() {
            true => RowKind::Phase,
            false => RowKind::Layer,
        };
        if spans.is_empty() {
            let phase = place.phase.map(|phase| phase.to_string());
            spans.push(phase.unwrap_or_else(|| "outside of layers".to_owned()));
        }
        Self {
            kind,
            phase: place.phase,
            spans,
            ..Self::default()
        }
    }
}

/// What was held before the work began and still was at the peak: what is known of it, and the rest.
fn before(unit: &Unit) -> Vec<LayerRow> {
    if !unit.is_measured {
        return Vec::new();
    }
    let mut left = unit.ledger.peak.before;
    let mut row = |kind, name: &str, bytes: u64| {
        let bytes = bytes.min(left);
        left -= bytes;
        LayerRow {
            kind,
            spans: vec![name.to_owned()],
            at_peak: Some(bytes),
            ..LayerRow::default()
        }
    };
    let known = unit.held.iter();
    let known = known.map(|held| row(RowKind::Held, &held.what, held.bytes));
    let mut rows: Vec<_> = known.collect();
    rows.push(row(RowKind::Rest, Holding::OTHER, u64::MAX));
    rows.retain(|row| row.at_peak > Some(0));
    rows
}

/// Replaces the number at the end of a name by a star.
fn fold(name: &mut String) {
    if let Some((before, number)) = name.rsplit_once('.')
        && number.parse::<u32>().is_ok()
    {
        *name = format!("{before}.*");
    }
}
