use std::time::Instant;

use candle_core::{D, Device, DeviceLocation, Result, Tensor, Var};
use candle_nn::Optimizer;

use super::code::{SMOKE_FAILED, SMOKE_PASSED, SMOKE_WRONG};
use super::finding::Finding;
use super::timed::Probe;
use crate::{AdamW, Error, ParamsAdamW};

/// How far a result may be from what it must be, relative to its size: TF32 and other orders of summing stay far below it.
const TOLERANCE: f32 = 1e-2;

/// A step of the test, and what went wrong in it.
enum Trouble {
    Failed(&'static str, Error),
    Wrong(&'static str, String),
}

/// Opens the device and works on it.
pub(super) fn test(location: DeviceLocation) -> Finding {
    told(location, run(location))
}

fn told(location: DeviceLocation, outcome: std::result::Result<(), Trouble>) -> Finding {
    let place = name(location);
    let finding = match outcome {
        Ok(()) => {
            let seen =
                format!("{place}: allocated, launched, multiplied, read back, one step of AdamW");
            Finding::new(&SMOKE_PASSED, seen)
        }
        Err(Trouble::Failed(step, error)) => {
            let finding = Finding::new(&SMOKE_FAILED, format!("{place}, {step}: {error}"));
            match error.remedy() {
                Some(remedy) => finding.next(remedy),
                None => finding.next("see the other findings"),
            }
        }
        Err(Trouble::Wrong(step, what)) => {
            Finding::new(&SMOKE_WRONG, format!("{place}, {step}: {what}"))
        }
    };
    finding.of(location)
}

/// Waits for the test. Work that hangs or stops is work that failed.
pub(super) fn finish(
    probe: Probe<Finding>,
    location: DeviceLocation,
    deadline: Instant,
) -> Finding {
    let mut troubles = Vec::new();
    probe.finish(deadline, &mut troubles).unwrap_or_else(|| {
        let troubles = troubles.iter().map(|trouble| trouble.code.title);
        let troubles: Vec<_> = troubles.collect();
        let seen = format!("{}: {}", name(location), troubles.join(", "));
        Finding::new(&SMOKE_FAILED, seen)
            .next("look into the kernel log for Xid messages and hung tasks")
            .by("sudo dmesg | grep -iE 'xid|hung|nvrm'")
            .of(location)
    })
}

fn name(location: DeviceLocation) -> String {
    match location {
        DeviceLocation::Cpu => "CPU".to_owned(),
        DeviceLocation::Cuda { gpu_id } => format!("CUDA device {gpu_id}"),
        DeviceLocation::Metal { gpu_id } => format!("Metal device {gpu_id}"),
    }
}

fn run(location: DeviceLocation) -> std::result::Result<(), Trouble> {
    let failed = |step| move |error: candle_core::Error| Trouble::Failed(step, error.into());
    let device = open(location).map_err(failed("opening"))?;

    let step = "allocating and launching";
    let a = ramp(24, 40, &device).map_err(failed(step))?;
    let doubled = a
        .affine(2., 1.)
        .and_then(|a| a.to_vec2::<f32>())
        .map_err(failed(step))?;
    let expected = |row: usize, column: usize| 2. * value(row, column, 40) + 1.;
    compare(step, &doubled, expected)?;

    let step = "multiplying matrices";
    let product = ramp(40, 16, &device)
        .and_then(|b| a.matmul(&b)?.to_vec2::<f32>())
        .map_err(failed(step))?;
    compare(step, &product, |row, column| {
        let terms = (0..40).map(|k| value(row, k, 40) * value(k, column, 16));
        terms.sum()
    })?;

    let step = "a step of the fused AdamW";
    let moved = optimize(&device).map_err(|error| Trouble::Failed(step, error))?;
    // In its first step Adam moves each parameter by the learning rate, against the sign of its gradient.
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

fn ramp(rows: usize, columns: usize, device: &Device) -> Result<Tensor> {
    let values =
        (0..rows).flat_map(|row| (0..columns).map(move |column| value(row, column, columns)));
    Tensor::from_vec(values.collect(), (rows, columns), device)
}

fn optimize(device: &Device) -> std::result::Result<Vec<f32>, Error> {
    let var = Var::from_tensor(&ramp(1, 8, device)?)?;
    let params = ParamsAdamW {
        lr: 0.1,
        weight_decay: 0.,
        ..ParamsAdamW::default()
    };
    let mut optimizer = AdamW::new(vec![var.clone()], params)?;
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
            // Written so that a value that is no number is wrong too.
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
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::environment::source::Source;

    #[test]
    fn work_that_hangs_or_stops_has_failed() {
        let source = Arc::new(Source::of_this_process());
        let hangs = Probe::start("the smoke test", &source, |_| -> Finding {
            loop {
                thread::park();
            }
        });
        let stops = Probe::start("the smoke test", &source, |_| -> Finding {
            panic!("a driver's fault, on purpose")
        });
        // A panic takes its time, with a trace of the stack.
        for (probe, says, limit) in [
            (hangs, "did not end in time", Duration::from_millis(100)),
            (stops, "stopped before its end", Duration::from_secs(60)),
        ] {
            let deadline = Instant::now() + limit;
            let finding = finish(probe, DeviceLocation::Cuda { gpu_id: 1 }, deadline);
            assert_eq!(finding.code.id, "HR-901");
            assert!(finding.seen.contains("CUDA device 1") && finding.seen.contains(says));
        }
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
        let finding = told(
            DeviceLocation::Cpu,
            Err(Trouble::Wrong("a step", "1 instead of 2".to_owned())),
        );
        assert_eq!(
            (finding.code.id, finding.device),
            ("HR-902", Some(DeviceLocation::Cpu))
        );
    }
}
