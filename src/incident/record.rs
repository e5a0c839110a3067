use std::time::{SystemTime, UNIX_EPOCH};

use candle_core::DeviceLocation;
use serde_json::{Value, json};

use crate::batch::{Event, Plan, TrainingEvent};
use crate::error::{DeviceFault, Error, Neighbour, ResourceExhausted};
use crate::monitor::{Sample, Source, write_object};
use crate::output::first_line;

/// An incident on its way into the file.
pub(super) struct Record {
    value: Value,
    /// A step has failed: the process may end next.
    pub(super) ends_the_work: bool,
}

impl Record {
    /// What is an incident: not the ordinary course of things.
    pub(super) fn of(moment: &TrainingEvent<'_>, now: SystemTime) -> Option<Self> {
        let mut ends_the_work = false;
        let (task, step, kind, text, details, plan) = match moment {
            TrainingEvent::Exhausted {
                task,
                step,
                exhausted,
                plan,
            } => {
                let details = ("exhausted", of_exhausted(exhausted));
                let text = exhausted.to_string();
                (task, step, "exhausted", text, Some(details), plan)
            }
            TrainingEvent::Happened {
                task,
                step,
                event,
                plan,
            } => {
                let details = ("size", of_event(event));
                let text = event.to_string();
                (task, step, kind(event), text, Some(details), plan)
            }
            TrainingEvent::BatchFailed {
                task,
                step,
                error,
                plan,
                ..
            } => {
                ends_the_work = true;
                let details = match error {
                    Error::DeviceFault(fault) => Some(("fault", of_fault(fault))),
                    Error::ResourceExhausted(exhausted) => {
                        Some(("exhausted", of_exhausted(exhausted)))
                    }
                    _ => None,
                };
                let kind = match error {
                    Error::DeviceFault(_) => "fault",
                    _ => "failed",
                };
                let text = error.to_string();
                // candle's errors carry a whole backtrace when `RUST_BACKTRACE` is set.
                let text = first_line(&text).to_owned();
                (task, step, kind, text, details, plan)
            }
            _ => return None,
        };
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut value = json!({
            "taken_unix_ms": since.as_millis() as u64,
            "process": std::process::id(),
            "task": task.to_string(),
            // As reports number them, from 1.
            "step": step + 1,
            "kind": kind,
            "text": text,
        });
        if let Some((name, details)) = details {
            value[name] = details;
        }
        if let Some(plan) = plan {
            value["plan"] = of_plan(plan);
        }
        Some(Self {
            value,
            ends_the_work,
        })
    }

    /// One line of JSON, without its end.
    pub(super) fn line(self, samples: &[(Source, Sample)]) -> String {
        let mut line = self.value.to_string();
        if !samples.is_empty() {
            // Before the closing brace; a sample is an object already.
            line.pop();
            line.push_str(",\"samples\":[");
            for (index, (source, sample)) in samples.iter().enumerate() {
                if index > 0 {
                    line.push(',');
                }
                write_object(&mut line, source, sample);
            }
            line.push_str("]}");
        }
        line
    }
}

fn kind(event: &Event) -> &'static str {
    match event {
        Event::Grown { .. } => "grown",
        Event::Shrunk { .. } => "shrunk",
        Event::Paced { .. } => "paced",
        Event::Retried { .. } => "retried",
        Event::OverLimit { .. } => "over_limit",
        Event::Restarted { .. } => "restarted",
    }
}

fn of_event(event: &Event) -> Value {
    match event {
        Event::Grown { from, to } | Event::Shrunk { from, to } | Event::Paced { from, to } => {
            json!({"from": from, "to": to})
        }
        Event::Retried { samples, to, .. } => json!({"from": samples.len(), "to": to}),
        Event::OverLimit { peak, limit } => json!({"peak": peak, "limit": limit}),
        Event::Restarted { lost } => json!({ "lost": lost }),
    }
}

/// All that is known, in bytes; what is not is `null`.
fn of_exhausted(exhausted: &ResourceExhausted) -> Value {
    let bytes = &exhausted.bytes;
    let remedies = exhausted.ranked_remedies();
    let (held, neighbours) = (exhausted.held.iter(), exhausted.neighbours.iter());
    let samples = exhausted.samples.as_ref();
    let source = std::error::Error::source(exhausted).map(ToString::to_string);
    json!({
        "device": exhausted.device.map(device),
        "resource": exhausted.resource.to_string(),
        "phase": exhausted.phase.map(|phase| phase.to_string()),
        "cause": exhausted.cause.to_string(),
        "bytes": {
            "requested": bytes.requested, "in_use": bytes.in_use, "reserved": bytes.reserved, "peak": bytes.peak,
            "limit": bytes.limit, "free": bytes.free, "total": bytes.total, "others": exhausted.others(),
        },
        "expected_peak": exhausted.expected_peak,
        "held": held.map(|held| json!({"what": held.what, "bytes": held.bytes})).collect::<Vec<_>>(),
        "neighbours": neighbours.map(of_neighbour).collect::<Vec<_>>(),
        "micro_batch": exhausted.micro_batch,
        "samples": samples.map(|samples| [samples.start, samples.end]),
        "remedies": remedies.map(|remedy| json!({"advice": remedy.advice, "saves": remedy.saves})).collect::<Vec<_>>(),
        "source": source.as_ref().map(|source| first_line(source)),
    })
}

fn of_neighbour(neighbour: &Neighbour) -> Value {
    json!({"process": neighbour.process, "name": neighbour.name, "bytes": neighbour.bytes})
}

/// What was believed at that time, and so why the size was what it was.
fn of_plan(plan: &Plan) -> Value {
    json!({
        "base": plan.base, "each": plan.each, "each_forward": plan.each_forward, "room": plan.room, "fits": plan.fits,
        "using": plan.using, "reason": plan.reason.to_string(),
    })
}

fn of_fault(fault: &DeviceFault) -> Value {
    json!({"name": fault.name, "code": fault.code, "cause": fault.cause, "remedy": fault.remedy})
}

/// As the command line of candle's examples writes it.
fn device(device: DeviceLocation) -> String {
    match device {
        DeviceLocation::Cpu => "cpu".to_owned(),
        DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    }
}
