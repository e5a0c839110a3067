//! The answer, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use bytesize::ByteSize;
use candle_headroom_environment::dry_run::{
    Card, Device, Fit, Held, Place, ReadBack, Refused, Report,
};
use serde::Serialize;

use super::outcome::Outcome;
use crate::output::plain;

/// Bytes.
#[derive(Debug, Serialize)]
pub struct Answer {
    pub outcome: Outcome,
    /// If there is more to say than whether it fits.
    pub why: Option<String>,
    /// The card on which the program ran.
    pub card: String,
    pub capacity_bytes: u64,
    /// Processes and devices that were used; the figures are of the one that held the most.
    pub used: usize,
    /// Without it no device was used.
    pub peak: Option<Peak>,
    pub cards: Vec<OnCard>,
    pub remedies: Vec<Remedy>,
}

#[derive(Debug, Serialize)]
pub struct Peak {
    pub tensor_bytes: u64,
    /// What lies outside of the pool, at least and at most.
    pub outside_bytes: [u64; 2],
    pub at: String,
    pub held: Vec<Share>,
    pub layers: Vec<Share>,
    pub refused: Option<Want>,
    pub micro_batch: Option<MicroBatch>,
    pub read_back: Option<Unknown>,
    pub allocations: u64,
    pub kernels: u64,
    /// Bytes held over time: the highest of each `line_stride` allocations.
    pub line_stride: u64,
    pub line: Vec<u64>,
}

#[derive(Debug, Serialize)]
pub struct Share {
    pub by: String,
    pub bytes: u64,
}

/// The last allocation that there was no memory for.
#[derive(Debug, Serialize)]
pub struct Want {
    pub bytes: u64,
    pub held_bytes: u64,
    pub at: String,
}

#[derive(Debug, Serialize)]
pub struct MicroBatch {
    /// The most samples that went through at once.
    pub samples: u64,
    /// Samples at which memory ran out.
    pub refused: Option<u64>,
    pub bytes_per_sample: Option<u64>,
    /// By that.
    pub largest: Option<u64>,
    /// What recomputing the model's marked regions would save.
    pub could_save: u64,
    pub largest_recomputed: Option<u64>,
}

/// Values that the program read although nothing had computed them.
#[derive(Debug, Serialize)]
pub struct Unknown {
    pub copies: u64,
    pub bytes: u64,
    pub at: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct OnCard {
    pub card: String,
    pub bytes: u64,
    pub fits: &'static str,
}

#[derive(Debug, Serialize)]
pub struct Remedy {
    pub advice: &'static str,
    pub saves: u64,
}

/// What a phase's allocations are, as far as they outlive it.
fn kind(by: &Place) -> &'static str {
    match by.phase.as_str() {
        "" => "outside of steps (parameters, data)",
        "forward" => "forward pass (activations)",
        "recompute" => "recomputed regions",
        "backward" | "accumulate" | "reduce" => "backward pass (gradients)",
        "optimizer" => "updates (optimizer's state)",
        _ => "transfers (data)",
    }
}

/// Sums by a name, the largest first.
fn shares(held: &[Held], name: impl Fn(&Place) -> String) -> Vec<Share> {
    let mut sums = BTreeMap::new();
    for held in held {
        *sums.entry(name(&held.by)).or_insert(0) += held.bytes;
    }
    let shares = sums.into_iter().filter(|(by, _)| !by.is_empty());
    let mut shares: Vec<_> = shares.map(|(by, bytes)| Share { by, bytes }).collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    shares
}

impl Peak {
    fn of(device: &Device, card: &Card) -> Self {
        let peak = &device.peak;
        Self {
            tensor_bytes: device.peak_tensor_bytes,
            outside_bytes: [*card.outside().start(), *card.outside().end()],
            at: plain(&peak.at.describe()),
            held: shares(&peak.held, |by| kind(by).to_owned()),
            layers: shares(&peak.held, |by| plain(&by.layers)),
            refused: device.refused.as_ref().map(Want::of),
            micro_batch: MicroBatch::of(device, card),
            read_back: Unknown::of(&device.read_back),
            allocations: device.allocations,
            kernels: device.kernels,
            line_stride: device.line.stride,
            line: device.line.bytes.clone(),
        }
    }
}

impl Want {
    fn of(refused: &Refused) -> Self {
        Self {
            bytes: refused.bytes,
            held_bytes: refused.held_bytes,
            at: plain(&refused.at.describe()),
        }
    }
}

impl MicroBatch {
    fn of(device: &Device, card: &Card) -> Option<Self> {
        let pieces = || device.pieces.iter().filter(|piece| piece.samples > 0);
        let done = pieces().filter(|piece| piece.count > piece.refused);
        let most = done.max_by_key(|piece| piece.samples)?;
        let refused = pieces()
            .filter(|piece| piece.refused > 0)
            .map(|piece| piece.samples);
        let room = card
            .bytes
            .saturating_sub(most.peak_bytes + card.outside().end());
        let each = device.bytes_per_sample();
        let recomputed = |each: u64| {
            let whole = room + most.samples * each;
            let less = each.checked_sub(most.could_save_bytes / most.samples)?;
            whole
                .checked_div(less)
                .filter(|_| most.could_save_bytes > 0)
        };
        Some(Self {
            could_save: most.could_save_bytes,
            largest_recomputed: each.and_then(recomputed),
            samples: most.samples,
            refused: refused.min(),
            bytes_per_sample: each,
            largest: each.map(|each| most.samples + room / each),
        })
    }
}

impl Unknown {
    fn of(read_back: &[ReadBack]) -> Option<Self> {
        let copies = read_back.iter().map(|read| read.copies).sum();
        let places = read_back.iter().map(|read| plain(&read.at.describe()));
        (copies > 0).then(|| Self {
            copies,
            bytes: read_back.iter().map(|read| read.bytes).sum(),
            at: places.filter(|place| !place.is_empty()).collect(),
        })
    }
}

impl Answer {
    pub fn new(
        (outcome, why): (Outcome, Option<String>),
        succeeded: bool,
        cards: &[Card],
        report: &Report,
    ) -> Self {
        let died = report.ran_out().filter(|_| !succeeded);
        let largest = died.map(|(device, _)| device).or(report.largest());
        let peak = largest.zip(cards.first());
        let peak = peak.map(|(device, card)| Peak::of(device, card));
        // What it asked for last does not show in what it held.
        let wanted = died.map(|(_, refused)| refused.needed_bytes());
        let tensors = wanted.or(largest.map(|device| device.peak_block_bytes));
        let is_whole = matches!(
            outcome,
            Outcome::Fits | Outcome::DoesNotFit | Outcome::TooClose
        ) && wanted.is_none();
        let on_card = |card: &Card| OnCard {
            card: card.name.clone(),
            bytes: card.bytes,
            fits: match tensors.map(|tensors| card.fits(tensors)) {
                Some(Fit::Yes) if is_whole => "yes",
                Some(Fit::TooClose) => "too close to say",
                Some(Fit::No) => "no",
                // It did not get to its end.
                Some(Fit::Yes) | None => "not known",
            },
        };
        let mut on_cards = cards.iter().map(on_card).collect::<Vec<_>>();
        if let Some(first) = on_cards.first_mut() {
            match outcome {
                Outcome::DoesNotFit => first.fits = "no",
                Outcome::TooClose => first.fits = "too close to say",
                _ => {}
            }
        }
        Self {
            outcome,
            why,
            card: cards
                .first()
                .map_or(String::new(), |card| card.name.clone()),
            capacity_bytes: cards.first().map_or(0, |card| card.bytes),
            used: report.devices.len(),
            remedies: peak.as_ref().map_or(Vec::new(), remedies),
            peak,
            cards: on_cards,
        }
    }

    /// Lines of a label and a text.
    pub fn text(&self, layers: bool) -> String {
        let mut text = String::new();
        let mut line = |label: &str, value: String| _ = writeln!(text, "{label:<15} {value}");
        let gib = |bytes: u64| format!("{:.1}", bytes as f64 / (1u64 << 30) as f64);
        if let Some(peak) = &self.peak {
            let [least, most] = peak.outside_bytes;
            line(
                "peak",
                format!(
                    "{} of tensors + {} to {} GiB outside them (estimated) = at most {} of {} GiB",
                    ByteSize(peak.tensor_bytes),
                    gib(least),
                    gib(most),
                    gib(peak.tensor_bytes + most),
                    gib(self.capacity_bytes)
                ),
            );
            if !peak.at.is_empty() {
                line("when", peak.at.clone());
            }
            // One that is refused at the very beginning is a question of the program's: does the driver keep a limit?
            if let Some(refused) = peak
                .refused
                .as_ref()
                .filter(|refused| refused.held_bytes > 0)
            {
                let at = match refused.at.as_str() {
                    "" => String::new(),
                    at => format!(", {at}"),
                };
                let (bytes, held) = (ByteSize(refused.bytes), ByteSize(refused.held_bytes));
                line(
                    "out of memory",
                    format!("{bytes} more were asked for while tensors held {held}{at}"),
                );
            }
            if let Some(batch) = &peak.micro_batch {
                line("micro-batch", batch.text());
            }
            if peak.held.len() > 1 {
                let shares = peak
                    .held
                    .iter()
                    .map(|share| format!("{} {}", share.by, ByteSize(share.bytes)));
                line("held at peak", shares.collect::<Vec<_>>().join(" · "));
            }
            if layers {
                for share in &peak.layers {
                    line(
                        "",
                        format!("{:>10}  {}", ByteSize(share.bytes).to_string(), share.by),
                    );
                }
            }
            if let Some(read) = &peak.read_back {
                let at = match read.at.is_empty() {
                    true => String::new(),
                    false => format!(" ({})", read.at.join("; ")),
                };
                line(
                    "not computed",
                    format!(
                        "{} copies ({}) to the host{at} read as zeros, or as what was there before: what the program decides by them may differ",
                        read.copies,
                        ByteSize(read.bytes)
                    ),
                );
            }
        }
        if self.used > 1 {
            line(
                "of",
                format!(
                    "{} processes or devices, the one that held the most",
                    self.used
                ),
            );
        }
        let fits = self
            .cards
            .iter()
            .map(|card| format!("{} {} ({} GiB)", card.card, card.fits, gib(card.bytes)));
        line("fits", fits.collect::<Vec<_>>().join(" · "));
        if self.cards.iter().any(|card| card.fits != "yes") {
            for remedy in &self.remedies {
                line(
                    "could save",
                    format!("{}: {}", ByteSize(remedy.saves), remedy.advice),
                );
            }
        }
        text
    }
}

impl MicroBatch {
    fn text(&self) -> String {
        let mut text = format!("{} samples", self.samples);
        if let Some(refused) = self.refused {
            _ = write!(text, " went through, {refused} did not");
        }
        if let Some((each, largest)) = self.bytes_per_sample.zip(self.largest) {
            _ = write!(
                text,
                "; {} each, so that about {largest} would fit",
                ByteSize(each)
            );
            if let Some(largest) = self.largest_recomputed {
                _ = write!(text, ", {largest} with recomputed regions");
            }
        }
        text
    }
}

/// What would reduce the peak, the most effective first.
fn remedies(peak: &Peak) -> Vec<Remedy> {
    let held = |by: &str| {
        let shares = peak.held.iter().filter(|share| share.by.starts_with(by));
        shares.map(|share| share.bytes).sum::<u64>()
    };
    let batch = peak.micro_batch.as_ref();
    let marked = batch.map_or(0, |batch| batch.could_save);
    let batch = batch.and_then(|batch| Some(batch.bytes_per_sample? * (batch.samples - 1)));
    let remedies = [
        (
            marked,
            "with the model's marked regions recomputed (`Recompute::Always`)",
        ),
        (
            if marked > 0 { 0 } else { held("forward") },
            "the most that recomputed regions can save (`nn::recompute`)",
        ),
        // Of 8 bytes a parameter in f32, 2 and the scales of blocks remain.
        (
            held("updates") / 4 * 3,
            "with the optimizer's state in 8 bits, if it is f32 (`Moments::Int8`)",
        ),
        (
            batch.unwrap_or(0),
            "with micro-batches of one sample (`AdaptiveTrainer`)",
        ),
    ];
    let remedies = remedies.into_iter().filter(|(saves, _)| *saves > 0);
    let mut remedies: Vec<_> = remedies
        .map(|(saves, advice)| Remedy { advice, saves })
        .collect();
    remedies.sort_by_key(|remedy| std::cmp::Reverse(remedy.saves));
    remedies
}
