use std::time::Instant;

use candle_core::{D, Device, DeviceLocation, Result, Tensor, Var};
use candle_nn::Optimizer;

use super::code;
use super::finding::Finding;
use super::probe::driver;
use crate::Error;
use crate::optim::{AdamW, ParamsAdamW};
use crate::patience::{Task, Unfinished};

/// The tolerance of a result, relative to its size: TF32 and other orders of summation stay far below it.
const TOLERANCE: f32 = 1e-2;

/// What went wrong in a step of the test.
enum Trouble {
    Failed(&'static str, Error),
    Wrong(&'static str, String),
}

/// Opens the device and works on it until the deadline. Work that hangs or panics counts as failed.
pub(super) fn run(location: DeviceLocation, deadline: Instant) -> Finding {
    run_work(location, deadline, move || work(location))
}

fn run_work(
    location: DeviceLocation,
    deadline: Instant,
    work: impl FnOnce() -> std::result::Result<(), Trouble> + Send + 'static,
) -> Finding {
    let left = move || deadline.saturating_duration_since(Instant::now());
    let test = move || -> std::result::Result<Finding, String> {
        // candle loads libcuda in this process.
        if matches!(location, DeviceLocation::Cuda { .. }) {
            driver::probe_loading(left() / 2)?;
        }
        Ok(finding(location, work()))
    };
    let reason = match Task::start("probe: the smoke test", test).wait(left()) {
        Ok(Ok(finding)) => return finding,
        Ok(Err(reason)) => reason,
        Err(Unfinished::TimedOut) => code::PROBE_TIMED_OUT.title.to_owned(),
        Err(_) => code::PROBE_STOPPED.title.to_owned(),
    };
    let seen = format!("{}: {reason}", name(location));
    Finding::new(code::SMOKE_FAILED, seen)
        .next(code::PROBE_TIMED_OUT.next_step)
        .by(code::PROBE_TIMED_OUT.command)
        .of(location)
}

fn finding(location: DeviceLocation, outcome: std::result::Result<(), Trouble>) -> Finding {
    let place = name(location);
    let finding = match outcome {
        Ok(()) => {
            let steps = "allocated, launched, multiplied, read back, one step of AdamW";
            Finding::new(code::SMOKE_PASSED, format!("{place}: {steps}"))
        }
        Err(Trouble::Failed(step, error)) => {
            let finding = Finding::new(code::SMOKE_FAILED, format!("{place}, {step}: {error}"));
            finding.next(error.remedy().unwrap_or("see the other findings"))
        }
        Err(Trouble::Wrong(step, what)) => {
            Finding::new(code::SMOKE_WRONG, format!("{place}, {step}: {what}"))
        }
    };
    finding.of(location)
}

fn name(location: DeviceLocation) -> String {
    match location {
        DeviceLocation::Cpu => "CPU".to_owned(),
        DeviceLocation::Cuda { gpu_id } => format!("CUDA device {gpu_id}"),
        DeviceLocation::Metal { gpu_id } => format!("Metal device {gpu_id}"),
    }
}

fn work(location: DeviceLocation) -> std::result::Result<(), Trouble> {
    let failed = |step| move |error: candle_core::Error| Trouble::Failed(step, error.into());
    let device = open(location).map_err(failed("opening"))?;

    let step = "allocating and launching";
    let a = ramp(24, 40, &device).map_err(failed(step))?;
    let doubled = a.affine(2., 1.).and_then(|a| a.to_vec2::<f32>());
    let expected = |row: usize, column: usize| 2. * value(row, column, 40) + 1.;
    compare(step, &doubled.map_err(failed(step))?, expected)?;

    let step = "multiplying matrices";
    let b = ramp(40, 16, &device).map_err(failed(step))?;
    let product = a.matmul(&b).and_then(|product| product.to_vec2::<f32>());
    compare(step, &product.map_err(failed(step))?, |row, column| {
        let terms = (0..40).map(|k| value(row, k, 40) * value(k, column, 16));
        terms.sum()
    })?;

    let step = "a step of the fused AdamW";
    let moved = optimize(&device).map_err(|error| Trouble::Failed(step, error))?;
    // The first step of Adam moves each parameter by the learning rate, against the sign of its gradient.
    compare(step, &[moved], |_, index| value(0, index, 8) - 0.1)
}

fn open(location: DeviceLocation) -> Result<Device> {
    match location {
        DeviceLocation::Cpu => Ok(Device::Cpu),
        DeviceLocation::Cuda { gpu_id } => Device::new_cuda_with_stream(gpu_id),
        DeviceLocation::Metal { gpu_id } => Device::new_metal(gpu_id),
    }
}

fn value(row: usize, column: usize, columns: usize) -> f32 {
    ((row * columns + column) % 17) as f32 / 8. - 1.
}

/// Shape (rows, columns).
fn ramp(rows: usize, columns: usize, device: &Device) -> Result<Tensor> {
    let row = |row| (0..columns).map(move |column| value(row, column, columns));
    let values: Vec<f32> = (0..rows).flat_map(row).collect();
    Tensor::from_vec(values, (rows, columns), device)
}

fn optimize(device: &Device) -> std::result::Result<Vec<f32>, Error> {
    let var = Var::from_tensor(&ramp(1, 8, device)?)?;
    let params = ParamsAdamW {
        lr: 0.1,
        weight_decay: 0.,
        ..ParamsAdamW::default()
    };
    let mut optimizer = AdamW::builder(vec![var.clone()]).params(params).build()?;
    let loss = (var.as_tensor() * 3.)?.sum_all()?;
    optimizer.backward_step(&loss)?;
    Ok(var.squeeze(D::Minus2)?.to_vec1()?)
}

fn compare(
    step: &'static str,
    found: &[Vec<f32>],
    expected: impl Fn(usize, usize) -> f32,
) -> std::result::Result<(), Trouble> {
    for (row, values) in found.iter().enumerate() {
        for (column, &value) in values.iter().enumerate() {
            let expected = expected(row, column);
            // NaN is wrong too.
            let is_right = (value - expected).abs() <= TOLERANCE * expected.abs().max(1.);
            if !is_right {
                let what = format!("{value} at ({row}, {column}) instead of {expected}");
                return Err(Trouble::Wrong(step, what));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn work_that_hangs_or_panics_has_failed() {
        let metal = DeviceLocation::Metal { gpu_id: 1 };
        let says = |limit, work: fn() -> std::result::Result<(), Trouble>| {
            let finding = run_work(metal, Instant::now() + limit, work);
            assert_eq!(finding.code.id, "HR-901");
            assert!(finding.seen.contains("Metal device 1"));
            finding.seen
        };
        let hung = says(Duration::from_millis(100), || {
            loop {
                thread::park();
            }
        });
        assert!(hung.contains(code::PROBE_TIMED_OUT.title), "{hung}");
        // A panic that prints a stack trace takes long.
        let stopped = says(Duration::from_secs(60), || panic!("on purpose"));
        assert!(stopped.contains(code::PROBE_STOPPED.title), "{stopped}");
    }

    #[test]
    fn wrong_results_are_found() {
        let wrong = |value| {
            let outcome = compare("multiplying", &[vec![1., value]], |_, column| {
                1. + column as f32
            });
            matches!(outcome, Err(Trouble::Wrong(..)))
        };
        assert!(!wrong(2.) && wrong(2.1) && wrong(f32::NAN));
        let trouble = Trouble::Wrong("a step", "1 instead of 2".to_owned());
        let finding = finding(DeviceLocation::Cpu, Err(trouble));
        let expected = ("HR-902", Some(DeviceLocation::Cpu));
        assert_eq!((finding.code.id, finding.device), expected);
    }
}
