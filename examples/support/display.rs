//! What a run says while it goes on.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use bytesize::ByteSize;
use candle_headroom::StepReport;
use candle_headroom::batch::Plan;
use candle_headroom::checkpoint::Stopped;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::changes;
use super::closing::{Course, Figure, Next, Totals};
use super::options::PrintOptions;

/// What is printed on standard output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Output {
    /// Nothing: of several ranks only the first one is heard.
    Unheard,
    /// Nothing: only what must not be missed, on standard error.
    Quiet,
    /// Lines, and a progress bar on a terminal.
    Text,
    /// A JSON object a line.
    Json,
}

impl Output {
    pub fn new(options: PrintOptions, rank: usize) -> Self {
        match options {
            _ if rank > 0 => Self::Unheard,
            PrintOptions { quiet: true, .. } => Self::Quiet,
            PrintOptions { json: true, .. } => Self::Json,
            _ => Self::Text,
        }
    }

    pub fn is_text(self) -> bool {
        self == Self::Text
    }

    /// Prints a line of text.
    pub fn say(self, line: impl Display) -> Result<()> {
        match self {
            Self::Text => print(line),
            Self::Unheard | Self::Quiet | Self::Json => Ok(()),
        }
    }

    /// Prints a line that must not be missed: on standard error where no text is printed.
    pub fn warn(self, line: impl Display) -> Result<()> {
        match self {
            Self::Text => print(line),
            Self::Quiet | Self::Json => {
                // `eprintln!` would panic where standard error is closed.
                let _ = writeln!(io::stderr(), "warning: {line}");
                Ok(())
            }
            Self::Unheard => Ok(()),
        }
    }
}

/// A closed or full output is an error, where `println!` would panic.
fn print(line: impl Display) -> Result<()> {
    writeln!(io::stdout(), "{line}").context("cannot write to standard output")
}

pub struct Progress {
    output: Output,
    /// Hidden without a terminal.
    bar: ProgressBar,
    course: Course,
    totals: Totals,
    /// Peaks of the latest steps in bytes.
    peaks: VecDeque<u64>,
    /// What the policy has learned.
    pub plan: Option<Plan>,
    /// The files and folders that the run leaves, each with what it is.
    pub files: Vec<(&'static str, PathBuf)>,
    /// Figures of the program's own.
    pub measured: Vec<Figure>,
}

/// Number of steps in the bar's sparkline.
const SPARKS: usize = 16;

impl Progress {
    pub fn new(output: Output, course: Course) -> Result<Self> {
        let style = "{bar:20.cyan/dim} {pos:.bold}/{len}  {msg}  {elapsed:.dim}";
        // Lines go to standard output and the bar to standard error: it would be in their way where only one of them is a terminal.
        let bar = match output.is_text() && io::stdout().is_terminal() {
            true => ProgressBar::new(course.steps as u64),
            false => ProgressBar::hidden(),
        };
        let bar = bar.with_style(ProgressStyle::with_template(style)?);
        bar.set_position(course.done);
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Ok(Self {
            output,
            bar,
            course,
            totals: Totals::default(),
            peaks: VecDeque::new(),
            plan: None,
            files: Vec::new(),
            measured: Vec::new(),
        })
    }

    pub fn step(&mut self, report: &StepReport) -> Result<()> {
        let loss = report.loss()?;
        self.totals.add(report, loss);
        match self.output {
            Output::Unheard | Output::Quiet => Ok(()),
            Output::Json => print(self.object(report, loss)),
            Output::Text => self.lines(report, loss),
        }
    }

    /// Prints what happened in a step, and moves the bar. Without a terminal there is no bar: a line instead.
    fn lines(&mut self, report: &StepReport, loss: f64) -> Result<()> {
        for line in changes::lines(&report.events) {
            self.say(format!("step {}: {line}", report.step))?;
        }
        if self.bar.is_hidden() {
            return self.output.say(report);
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
        Ok(())
    }

    /// A step for programs. A loss that is not finite is null.
    fn object(&self, report: &StepReport, loss: f64) -> Value {
        let events = report.events.iter().map(ToString::to_string);
        json!({
            "step": report.step,
            "loss": loss,
            "samples": report.samples,
            "micro_batches": report.sizes.len(),
            "micro_batch": report.micro_batch(),
            "retries": report.retries,
            "retried_samples": report.samples_retried,
            "peak": report.peak,
            "limit": self.limit(),
            "learning_rate": report.learning_rate,
            "events": events.collect::<Vec<_>>(),
        })
    }

    /// In bytes.
    fn limit(&self) -> Option<u64> {
        self.course.budget.map(|budget| budget.as_u64())
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
        let whole = self.limit().unwrap_or(highest);
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

    /// Prints the end of a run that was stopped, and how to go on.
    pub fn stop(&self, stopped: &Stopped, next: &str) -> Result<()> {
        self.output.say(stopped)?;
        self.close(Some(stopped), next)
    }

    /// Prints the end of a run; as text nothing, if there was no step.
    pub fn finish(&self, next: &Next) -> Result<()> {
        let next = next.choose(&self.totals, self.course.budget, self.plan);
        self.close(None, &next)
    }

    fn close(&self, stopped: Option<&Stopped>, next: &str) -> Result<()> {
        self.clear();
        match self.output {
            Output::Unheard | Output::Quiet => Ok(()),
            Output::Json => print(self.summary(stopped, next)),
            Output::Text if self.totals.steps == 0 => Ok(()),
            Output::Text => {
                let lines = self.totals.lines(&self.course, self.plan, next);
                lines.into_iter().try_for_each(print)
            }
        }
    }

    /// The whole run for programs.
    fn summary(&self, stopped: Option<&Stopped>, next: &str) -> Value {
        let totals = &self.totals;
        let of_file = |(kind, path): &(&str, PathBuf)| json!({ "kind": kind, "path": path.display().to_string() });
        let mut summary = json!({
            "steps": totals.steps,
            "steps_before": self.course.done,
            "loss_first": totals.first_loss,
            "loss_last": totals.last_loss,
            "unit": self.course.unit,
            "seconds": self.seconds(),
            "samples": totals.samples,
            "retries": totals.retries,
            "retried_samples": totals.retried,
            "micro_batch": totals.micro_batch,
            "peak": totals.peak,
            "limit": self.limit(),
            "plan": self.plan,
            "stopped": stopped.map(ToString::to_string),
            "next": next,
            "files": self.files.iter().map(of_file).collect::<Vec<_>>(),
        });
        for figure in &self.measured {
            summary[figure.name] = json!(figure.value);
        }
        summary
    }

    fn seconds(&self) -> f64 {
        self.course.began.elapsed().as_secs_f64()
    }

    /// Prints the same numbers for programs, under this program's name.
    pub fn figures(&self, program: &str) -> Result<()> {
        let (totals, mut figures) = (&self.totals, self.measured.clone());
        if let (Some(first), Some(last)) = (totals.first_loss, totals.last_loss) {
            figures.push(Figure::new("loss_first", first, 4, "nats"));
            figures.push(Figure::new("loss_last", last, 4, "nats"));
            if let (Some(peak), Some(limit)) = (totals.peak, self.limit()) {
                let ratio = peak as f64 / limit as f64;
                figures.push(Figure::new("peak_over_budget", ratio, 4, "x"));
            }
            figures.push(Figure::new("retries", totals.retries as f64, 0, "retries"));
            figures.push(Figure::new("seconds", self.seconds(), 1, "s"));
        }
        for figure in figures {
            self.output.say(format!("figure: {program}/{figure}"))?;
        }
        Ok(())
    }
}
