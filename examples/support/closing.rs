//! How a run ends: what was reached, what it cost, and what to try next.

use std::fmt;
use std::time::Instant;

use bytesize::ByteSize;
use candle_headroom::StepReport;
use candle_headroom::batch::Plan;
use console::style;

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

/// Sums and extremes of all steps.
#[derive(Debug, Default)]
pub struct Totals {
    pub steps: u64,
    pub first_loss: Option<f64>,
    pub last_loss: Option<f64>,
    pub peak: Option<u64>,
    pub retries: usize,
    /// Number of samples that were computed again.
    pub retried: usize,
    pub samples: usize,
    /// Samples of the largest batch, and of its largest micro-batch where it ran last.
    batch: usize,
    pub micro_batch: usize,
}

impl Totals {
    pub fn add(&mut self, report: &StepReport, loss: f64) {
        self.steps += 1;
        self.first_loss.get_or_insert(loss);
        self.last_loss = Some(loss);
        self.peak = self.peak.max(report.peak);
        self.retries += report.retries;
        self.retried += report.samples_retried;
        self.samples += report.samples;
        if report.samples >= self.batch {
            self.batch = report.samples;
            self.micro_batch = report.micro_batch();
        }
    }

    /// The three lines at the end.
    pub fn lines(&self, course: &Course, plan: Option<Plan>, next: &str) -> [String; 3] {
        let label = |label: &str| style(format!("{label:<8}")).bold().to_string();
        let [first, last] = [self.first_loss, self.last_loss].map(|loss| loss.unwrap_or(f64::NAN));
        let steps = match (course.done, self.steps) {
            (0, 1) => "1 step".to_owned(),
            (0, steps) => format!("{steps} steps"),
            (done, steps) => format!("steps {} to {}", done + 1, done + steps),
        };
        let peak = match (self.peak, course.budget) {
            (Some(peak), Some(budget)) => format!("peak {} of {budget}", ByteSize(peak)),
            (Some(peak), None) => format!("peak {} without a budget", ByteSize(peak)),
            (None, _) => "peak not measured".to_owned(),
        };
        let plan = match plan {
            Some(plan) if self.micro_batch == self.batch => {
                let regions = plan.regions.filter(|regions| regions.is_on);
                let regions = regions.map_or(String::new(), |regions| format!(", {regions}"));
                format!("; a batch fits whole{regions}")
            }
            Some(plan) => format!("; {plan}"),
            None => String::new(),
        };
        let seconds = course.began.elapsed().as_secs_f64();
        let (samples, retried) = (self.samples, self.retried);
        [
            format!(
                "{} loss {first:.3} → {last:.3} {} in {steps}",
                label("reached"),
                course.unit
            ),
            format!(
                "{} {seconds:.1} s, {peak}, {samples} samples, {retried} retried{plan}",
                label("cost")
            ),
            format!("{} {next}", label("next")),
        ]
    }
}

/// What a program can suggest to try next, by options of its own.
pub struct Next {
    /// Samples in a batch, and the most that `--batch` takes, where a larger batch may follow.
    pub batch: Option<(usize, usize)>,
    /// If the loss is not finite.
    pub steadier: Option<String>,
    /// If the run gives no reason for anything else.
    pub otherwise: String,
}

impl Next {
    /// The suggestion that the run gives a reason for.
    pub fn choose(&self, totals: &Totals, budget: Option<ByteSize>, plan: Option<Plan>) -> String {
        let steadier = self.steadier.clone();
        let steadier = steadier.filter(|_| totals.last_loss.is_some_and(|loss| !loss.is_finite()));
        let of_memory = || {
            let (plan, _) = plan.zip(budget)?;
            faster(totals, &plan).or_else(|| self.larger(totals, &plan))
        };
        let reasoned = steadier.or_else(of_memory);
        reasoned.unwrap_or_else(|| self.otherwise.clone())
    }

    /// A batch that fills what is left, if that is a quarter or more.
    fn larger(&self, totals: &Totals, plan: &Plan) -> Option<String> {
        let ((batch, most), fits) = self.batch.zip(plan.fits)?;
        if totals.batch == 0 || fits < totals.batch.saturating_add(totals.batch.div_ceil(4)) {
            return None;
        }
        // Of several ranks each has a part of the batch.
        let larger = batch as f64 * (fits as f64 / totals.batch as f64);
        let larger = (larger as usize).min(most);
        (larger > batch)
            .then(|| format!("`--batch {larger}`: memory is left for {fits} samples at once"))
    }
}

/// The budget that makes micro-batches as large as the fastest ones were, if whole batches ran with others at last.
fn faster(totals: &Totals, plan: &Plan) -> Option<String> {
    let (faster, each, peak) = (plan.faster?, plan.each?, totals.peak?);
    if faster.size == totals.micro_batch {
        return None;
    }
    let more = (faster.size as f64 - totals.micro_batch as f64) * each as f64;
    // A little more, which the policy leaves free.
    let mib = (1.02 * (peak as f64 + more) / f64::from(1 << 20)).ceil();
    (mib > 0.).then(|| {
        format!(
            "`--budget {mib:.0}MiB`: micro-batches of {} were the fastest, {:.1} samples a second",
            faster.size, faster.samples_per_second
        )
    })
}

/// A number for programs.
#[derive(Debug, Clone)]
pub struct Figure {
    pub name: &'static str,
    pub value: f64,
    decimals: usize,
    unit: &'static str,
}

impl Figure {
    pub fn new(name: &'static str, value: f64, decimals: usize, unit: &'static str) -> Self {
        Self {
            name,
            value,
            decimals,
            unit,
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            value,
            decimals,
            unit,
        } = *self;
        write!(f, "{name} = {value:.decimals$} {unit}")
    }
}
