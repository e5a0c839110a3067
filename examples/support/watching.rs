//! The files that a run leaves on request: page, trace and incidents.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use candle_headroom::distributed::Group;
use candle_headroom::incident::{IncidentLog, Incidents};
use candle_headroom::monitor::{Sample, Source};
use candle_headroom::{Monitor, StepReport, Timeline};

use super::options::WatchOptions;

pub struct Watching {
    files: Files,
    timeline: Timeline,
    incidents: Option<IncidentLog>,
    /// Feeds its curves into the timeline until it is dropped.
    _monitor: Option<Monitor>,
}

impl Watching {
    /// Creates the files that do not exist yet, so that a wrong path is an error before training.
    /// Of all GPUs only the one with this number is watched.
    pub fn begin(options: &WatchOptions, ordinal: Option<usize>, group: &Group) -> Result<Self> {
        let files = Files::new(options, group);
        if group.rank() == 0 {
            files.create()?;
        }
        let timeline = Timeline::new();
        let curves = timeline.clone();
        // Only the GPU that trains, and the host.
        let sink = move |source: &Source, sample: &Sample| {
            if source.uuid.is_some() && (ordinal.is_none() || source.cuda != ordinal) {
                return Ok(());
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
            Ok(())
        };
        let monitor = match options.monitor {
            true => Some(
                Monitor::builder()
                    .interval(Duration::from_millis(100))
                    .sink(sink)
                    .start()?,
            ),
            false => None,
        };
        let incidents = match (&options.incidents, &monitor) {
            (Some(path), Some(monitor)) => {
                Some(IncidentLog::builder(path).monitor(monitor).open()?)
            }
            (Some(path), None) => Some(IncidentLog::builder(path).open()?),
            (None, _) => None,
        };
        Ok(Self {
            files,
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

    /// The files, each with what it is.
    pub fn files(&self) -> Vec<(&'static str, PathBuf)> {
        let files = &self.files;
        let kinds = [
            ("report", &files.pages),
            ("trace", &files.traces),
            ("incidents", &files.incidents),
        ];
        let named = |(kind, paths): (&'static str, &Vec<PathBuf>)| {
            let paths = paths.iter().cloned();
            paths.map(move |path| (kind, path)).collect::<Vec<_>>()
        };
        kinds.into_iter().flat_map(named).collect()
    }

    pub fn step(&self, report: &StepReport) -> Result<()> {
        self.timeline.number("loss", report.loss()?);
        Ok(())
    }

    /// Writes the page and the trace, also after a run that ended with an error. Returns a line about each file. All ranks call it.
    pub fn finish(
        &self,
        options: &WatchOptions,
        title: &str,
        group: &Group,
    ) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        match &self.files.together {
            together if together.is_empty() => {
                let (pages, traces) = (self.files.pages.iter(), self.files.traces.iter());
                let pages = pages.map(|path| self.timeline.save_page(title, path));
                let traces = traces.map(|path| self.timeline.save_trace(path));
                pages
                    .chain(traces)
                    .collect::<candle_headroom::Result<()>>()?;
            }
            together => {
                let save = |path| self.timeline.save_all(group, title, path);
                // All calls are made before an error counts: the other ranks make them too.
                let saved: Vec<_> = together.iter().map(save).collect();
                for times in saved {
                    lines = vec![times?.to_string()];
                }
            }
        }
        for path in &self.files.pages {
            lines.push(format!("{}: open it in a browser", path.display()));
        }
        for path in &self.files.traces {
            lines.push(format!(
                "{}: open it in https://ui.perfetto.dev",
                path.display()
            ));
        }
        if let Some(path) = &options.incidents {
            let summary = Incidents::read(path)?.summary();
            lines.push(format!("{}: {summary}", path.display()));
        }
        Ok(lines)
    }
}

/// The files to write at the end.
struct Files {
    pages: Vec<PathBuf>,
    traces: Vec<PathBuf>,
    /// What the names of a page and its trace begin with, where several ranks write them.
    together: Vec<PathBuf>,
    /// Written as incidents happen.
    incidents: Vec<PathBuf>,
}

impl Files {
    fn new(options: &WatchOptions, group: &Group) -> Self {
        let (report, trace) = (&options.report, &options.trace);
        let incidents = options.incidents.iter().cloned().collect();
        if group.size() == 1 {
            return Self {
                pages: report.iter().cloned().collect(),
                traces: trace.iter().cloned().collect(),
                together: Vec::new(),
                incidents,
            };
        }
        let named = report.iter().chain(trace);
        let mut together: Vec<_> = named.map(|path| without_ending(path)).collect();
        together.dedup();
        let with = |ending| together.iter().map(move |path| with_ending(path, ending));
        Self {
            pages: with(".html").collect(),
            traces: with(".json").collect(),
            together,
            incidents,
        }
    }

    fn create(&self) -> Result<()> {
        for path in self.pages.iter().filter(|path| !path.exists()) {
            Timeline::new().save_page("", path)?;
        }
        for path in self.traces.iter().filter(|path| !path.exists()) {
            Timeline::new().save_trace(path)?;
        }
        Ok(())
    }
}

fn without_ending(path: &Path) -> PathBuf {
    match path.extension() {
        Some(ending) if ending == "html" || ending == "json" => path.with_extension(""),
        _ => path.to_owned(),
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    path.into()
}
