//! Progress on the terminal, the closing table, and the figures.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytesize::ByteSize;
use candle_headroom::StepReport;
use candle_headroom::batch::Plan;
use indicatif::{ProgressBar, ProgressStyle};

/// Standard output. Of several ranks only the first one is heard.
#[derive(Clone, Copy)]
pub struct Output {
    pub is_heard: bool,
}

impl Output {
    /// Prints a line. A closed or full output is an error, where `println!` would panic.
    pub fn say(self, line: impl Display) -> Result<()> {
        match self.is_heard {
            true => writeln!(io::stdout(), "{line}").context("cannot write to standard output"),
            false => Ok(()),
        }
    }
}

/// What is known of a run before it begins.
pub struct Course {
    pub steps: usize,
    /// Steps that were done before, by the run that is resumed.
    pub done: u64,
    pub budget: Option<ByteSize>,
    /// Of the loss, such as `nats a byte`.
    pub unit: &'static str,
    pub began: Instant,
}

pub struct Progress {
    output: Output,
    bar: ProgressBar,
    course: Course,
    totals: Totals,
    /// Peaks of the latest steps in bytes.
    peaks: VecDeque<u64>,
}

/// Number of steps in the bar's sparkline.
const SPARKS: usize = 16;

#[derive(Default)]
struct Totals {
    first_loss: Option<f64>,
    last_loss: f64,
    peak: Option<u64>,
    retries: usize,
    recomputed: usize,
    samples: usize,
    micro_batch: usize,
}

impl Progress {
    pub fn new(output: Output, course: Course) -> Result<Self> {
        let style = "{bar:20} {pos}/{len}  {msg}  {elapsed}";
        let bar = match output.is_heard {
            true => ProgressBar::new(course.steps as u64),
            false => ProgressBar::hidden(),
        };
        let bar = bar.with_style(ProgressStyle::with_template(style)?);
        bar.set_position(course.done);
        bar.enable_steady_tick(Duration::from_millis(200));
        Ok(Self {
            output,
            bar,
            course,
            totals: Totals::default(),
            peaks: VecDeque::new(),
        })
    }

    pub fn step(&mut self, report: &StepReport) -> Result<()> {
        let loss = report.loss()?;
        let totals = &mut self.totals;
        totals.first_loss.get_or_insert(loss);
        totals.last_loss = loss;
        totals.peak = totals.peak.max(report.peak);
        totals.retries += report.retries;
        totals.recomputed += report.recomputed;
        totals.samples += report.samples;
        totals.micro_batch = report.micro_batch();

        for event in &report.events {
            self.say(format!("step {}: {event}", report.step))?;
        }
        let peak = report
            .peak
            .map(ByteSize)
            .map_or("n/a".to_owned(), |peak| peak.to_string());
        let message = format!(
            "loss {loss:.3}  micro-batch {}  peak {peak} {}",
            report.micro_batch(),
            self.sparkline(report.peak),
        );
        self.bar.set_message(message);
        self.bar.inc(1);
        // Without a terminal there is no bar: ten lines instead.
        if !std::io::stderr().is_terminal()
            && (report.step as usize).is_multiple_of(self.course.steps.div_ceil(10))
        {
            self.output.say(report)?;
        }
        Ok(())
    }

    /// Prints lines above the bar.
    pub fn say(&self, lines: impl Display) -> Result<()> {
        self.bar.suspend(|| self.output.say(lines))
    }

    /// Draws the latest peaks. A full block is the whole budget, or the highest peak where there is none.
    fn sparkline(&mut self, peak: Option<u64>) -> String {
        const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        self.peaks.extend(peak);
        if self.peaks.len() > SPARKS {
            self.peaks.pop_front();
        }
        let highest = self.peaks.iter().copied().max().unwrap_or(1);
        let whole = self.course.budget.map_or(highest, |budget| budget.as_u64());
        let block = |peak: &u64| {
            let share = *peak as f64 / whole.max(1) as f64;
            BLOCKS[((share * 8.) as usize).min(7)]
        };
        self.peaks.iter().map(block).collect()
    }

    /// Removes the bar.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// The closing table, with what the policy has learned.
    pub fn finish(&self, plan: Option<Plan>) -> Result<()> {
        self.bar.finish_and_clear();
        let totals = &self.totals;
        let size = |bytes: Option<ByteSize>| bytes.map_or("n/a".to_owned(), |b| b.to_string());
        self.output.say("")?;
        for (name, value) in [
            (
                "peak / budget",
                format!(
                    "{} / {}",
                    size(totals.peak.map(ByteSize)),
                    match self.course.budget {
                        Some(budget) => budget.to_string(),
                        None => "unlimited".to_owned(),
                    }
                ),
            ),
            (
                "last micro-batch",
                format!("{} samples", totals.micro_batch),
            ),
            (
                "plan",
                plan.map_or("n/a".to_owned(), |plan| plan.to_string()),
            ),
            ("retries", totals.retries.to_string()),
            (
                "samples recomputed",
                format!("{} of {}", totals.recomputed, totals.samples),
            ),
            (
                "loss first → last",
                format!(
                    "{:.3} → {:.3} {}",
                    self.first_loss(),
                    totals.last_loss,
                    self.course.unit
                ),
            ),
            (
                "time",
                format!("{:.1} s", self.course.began.elapsed().as_secs_f64()),
            ),
        ] {
            self.output.say(format!("{name:<20} {value}"))?;
        }
        Ok(())
    }

    /// Prints the same numbers for programs, under this program's name.
    pub fn figures(&self, program: &str) -> Result<()> {
        let totals = &self.totals;
        self.output.say(format!(
            "figure: {program}/loss_first = {:.4} nats",
            self.first_loss()
        ))?;
        self.output.say(format!(
            "figure: {program}/loss_last = {:.4} nats",
            totals.last_loss
        ))?;
        if let (Some(peak), Some(budget)) = (totals.peak, self.course.budget) {
            let ratio = peak as f64 / budget.as_u64() as f64;
            self.output
                .say(format!("figure: {program}/peak_over_budget = {ratio:.4} x"))?;
        }
        self.output.say(format!(
            "figure: {program}/retries = {} retries",
            totals.retries
        ))?;
        let seconds = self.course.began.elapsed().as_secs_f64();
        self.output
            .say(format!("figure: {program}/seconds = {seconds:.1} s"))
    }

    fn first_loss(&self) -> f64 {
        self.totals.first_loss.unwrap_or(f64::NAN)
    }
}
