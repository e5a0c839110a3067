//! The files that a run leaves on request: page, trace and incidents.

use std::time::Duration;

use anyhow::Result;
use candle_headroom::incident::{IncidentLog, Incidents};
use candle_headroom::monitor::Subscription;
use candle_headroom::{Monitor, StepReport, Timeline};

use crate::arguments::Arguments;

pub struct Watching {
    timeline: Timeline,
    incidents: Option<IncidentLog>,
    /// Feeds its curves into the timeline until it is dropped.
    _monitor: Option<(Monitor, Subscription)>,
}

impl Watching {
    /// Creates the files that do not exist yet, so that a wrong path is an error before training.
    pub fn begin(arguments: &Arguments) -> Result<Self> {
        if let Some(path) = arguments.report.as_ref().filter(|path| !path.exists()) {
            Timeline::new().save_page("", path)?;
        }
        if let Some(path) = arguments.trace.as_ref().filter(|path| !path.exists()) {
            Timeline::new().save_trace(path)?;
        }
        let timeline = Timeline::new();
        let monitor = match arguments.monitor {
            true => Some(
                Monitor::builder()
                    .interval(Duration::from_millis(100))
                    .start()?,
            ),
            false => None,
        };
        let incidents = match (&arguments.incidents, &monitor) {
            (Some(path), Some(monitor)) => {
                Some(IncidentLog::builder(path).monitor(monitor).open()?)
            }
            (Some(path), None) => Some(IncidentLog::builder(path).open()?),
            (None, _) => None,
        };
        let monitor = monitor.map(|monitor| {
            let curves = timeline.clone();
            // Only the GPU that trains, and the host.
            let ordinal = arguments.device.ordinal();
            let subscription = monitor.subscribe(move |source, sample| {
                if source.uuid.is_some() && (ordinal.is_none() || source.cuda != ordinal) {
                    return;
                }
                let numbers = [
                    ("busy, %", sample.utilisation.map(|percent| percent as f64)),
                    ("°C", sample.temperature.map(|celsius| celsius as f64)),
                    (
                        "GiB used",
                        sample.used.map(|bytes| bytes as f64 / f64::from(1 << 30)),
                    ),
                ];
                for (what, value) in numbers {
                    if let Some(value) = value {
                        curves.number(&format!("{source}: {what}"), value);
                    }
                }
            });
            (monitor, subscription)
        });
        Ok(Self {
            timeline,
            incidents,
            _monitor: monitor,
        })
    }

    pub fn timeline(&self) -> Timeline {
        self.timeline.clone()
    }

    pub fn incidents(&self) -> Option<IncidentLog> {
        self.incidents.clone()
    }

    pub fn step(&self, report: &StepReport) -> Result<()> {
        self.timeline.number("loss", report.loss.read()?);
        Ok(())
    }

    /// Writes the page and the trace, also after a run that ended with an error. Returns a line about each file.
    pub fn finish(&self, arguments: &Arguments) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        if let Some(path) = &arguments.report {
            let title = format!(
                "train_text, batches of {} × {} bytes",
                arguments.batch, arguments.context
            );
            self.timeline.save_page(&title, path)?;
            lines.push(format!("{}: open it in a browser", path.display()));
        }
        if let Some(path) = &arguments.trace {
            self.timeline.save_trace(path)?;
            lines.push(format!(
                "{}: open it in https://ui.perfetto.dev",
                path.display()
            ));
        }
        if let Some(path) = &arguments.incidents {
            let summary = Incidents::read(path)?.summary();
            lines.push(format!("{}: {summary}", path.display()));
        }
        Ok(lines)
    }
}
