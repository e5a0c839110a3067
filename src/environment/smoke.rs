use std::time::Instant;

use candle_core::{Device, DeviceLocation, Tensor, Var};
use candle_nn::Optimizer;

use super::probe::driver;
use super::{Finding, FindingCode, code};
use crate::Error;
use crate::error::device_name;
use crate::optim::{AdamW, ParamsAdamW};
use crate::patience::Task;

/// The tolerance of a result, relative to its size: TF32 and other orders of summation stay far below it.
const TOLERANCE: f32 = 1e-2;

/// Works on the device until the deadline. Work that hangs or panics counts as failed.
pub(super) fn run(
    location: DeviceLocation,
    deadline: Instant,
    work: impl FnOnce(DeviceLocation) -> Result<(), Finding> + Send + 'static,
) -> Finding {
    let left = move || deadline.saturating_duration_since(Instant::now());
    let test = move || {
        // candle loads libcuda in this process.
        if matches!(location, DeviceLocation::Cuda { .. }) {
            let loaded = driver::probe_loading(left() / 2);
            loaded.map_err(|error| unfinished(code::PROBE_TIMED_OUT, error.to_string()))?;
        }
        work(location)
    };
    let mut finding = match Task::start("probe: the smoke test", test).wait(left()) {
        Ok(Ok(())) => {
            let steps = "allocated, launched, multiplied, read back, one step of AdamW";
            Finding::new(code::SMOKE_PASSED, steps)
        }
        Ok(Err(finding)) => finding,
        Err(reason) => {
            let code = code::unfinished(reason);
            unfinished(code, code.title.to_owned())
        }
    };
    finding.seen = format!("{}: {}", device_name(location), finding.seen);
    finding.device = Some(location);
    finding
}

fn unfinished(code: &FindingCode, seen: String) -> Finding {
    Finding {
        next_step: code.next_step.into(),
        command: code.command.into(),
        ..Finding::new(code::SMOKE_FAILED, seen)
    }
}

/// Opens the device and takes all steps on it.
pub(super) fn work(location: DeviceLocation) -> Result<(), Finding> {
    let failed = |step: &str, error: Error| Finding {
        next_step: error.remedy().unwrap_or("see the other findings").into(),
        ..Finding::new(code::SMOKE_FAILED, format!("{step}: {error}"))
    };
    let device = match location {
        DeviceLocation::Cpu => Ok(Device::Cpu),
        DeviceLocation::Cuda { gpu_id } => Device::new_cuda_with_stream(gpu_id),
        DeviceLocation::Metal { gpu_id } => Device::new_metal(gpu_id),
    };
    let device = device.map_err(|error| failed("opening", error.into()))?;
    type Work = fn(&Device) -> Result<Vec<f32>, Error>;
    let check = |step, work: Work, expected: fn(f32) -> f32| {
        let found = work(&device).map_err(|error| failed(step, error))?;
        compare(step, &found, expected)
    };
    check("allocating and launching", launch, |index| {
        2. * value(index) + 1.
    })?;
    check("multiplying matrices", multiply, |index| {
        let (row, column) = ((index / 32.).floor(), index % 32.);
        let terms = (0..32).map(|k| k as f32);
        let terms = terms.map(|k| value(row * 32. + k) * value(k * 32. + column));
        terms.sum()
    })?;
    // The first step of Adam moves each parameter by the learning rate, against the sign of its gradient.
    check("a step of the fused AdamW", optimize, |index| {
        value(index) - 0.1
    })
}

/// Seventeen values from -1 to 1 in turn, so that neighbours, rows and columns differ.
fn value(index: f32) -> f32 {
    index % 17. / 8. - 1.
}

/// Shape (32, 32).
fn ramp(device: &Device) -> Result<Tensor, Error> {
    let values: Vec<_> = (0..1024).map(|index| value(index as f32)).collect();
    Ok(Tensor::from_vec(values, (32, 32), device)?)
}

fn launch(device: &Device) -> Result<Vec<f32>, Error> {
    Ok(ramp(device)?.affine(2., 1.)?.flatten_all()?.to_vec1()?)
}

fn multiply(device: &Device) -> Result<Vec<f32>, Error> {
    let ramp = ramp(device)?;
    Ok(ramp.matmul(&ramp)?.flatten_all()?.to_vec1()?)
}

fn optimize(device: &Device) -> Result<Vec<f32>, Error> {
    let var = Var::from_tensor(&ramp(device)?.flatten_all()?)?;
    let params = ParamsAdamW {
        lr: 0.1,
        weight_decay: 0.,
        ..ParamsAdamW::default()
    };
    let mut optimizer = AdamW::builder(vec![var.clone()]).params(params).build()?;
    let loss = (var.as_tensor() * 3.)?.sum_all()?;
    optimizer.backward_step(&loss)?;
    Ok(var.to_vec1()?)
}

fn compare(step: &str, found: &[f32], expected: fn(f32) -> f32) -> Result<(), Finding> {
    for (index, value) in found.iter().enumerate() {
        let expected = expected(index as f32);
        // NaN is wrong too.
        let is_right = (value - expected).abs() <= TOLERANCE * expected.abs().max(1.);
        if !is_right {
            let seen = format!("{step}: {value} at {index} instead of {expected}");
            return Err(Finding::new(code::SMOKE_WRONG, seen));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn work_that_hangs_or_panics_has_failed() {
        let metal = DeviceLocation::Metal { gpu_id: 1 };
        let fails = |limit, work: fn(DeviceLocation) -> Result<(), Finding>| {
            let finding = run(metal, Instant::now() + limit, work);
            assert_eq!(finding.code.id, "HR-901");
            assert!(finding.seen.contains("metal:1"), "{}", finding.seen);
            finding
        };
        let hung = fails(Duration::from_millis(100), |_| {
            loop {
                std::thread::park();
            }
        });
        assert!(hung.seen.contains(code::PROBE_TIMED_OUT.title), "{hung:?}");
        assert!(hung.command.contains("dmesg"), "{hung:?}");
        // A panic that prints a stack trace takes long.
        let stopped = fails(Duration::from_secs(60), |_| panic!("on purpose"));
        let title = code::PROBE_STOPPED.title;
        assert!(stopped.seen.contains(title), "{stopped:?}");
    }

    #[test]
    fn wrong_results_are_found() {
        let check = |value| {
            let work = move |_| compare("adding", &[1., value], |index| 1. + index);
            let later = Instant::now() + Duration::from_secs(60);
            run(DeviceLocation::Cpu, later, work)
        };
        assert_eq!(check(2.).code.id, "HR-900");
        for wrong in [2.1, f32::NAN] {
            let finding = check(wrong);
            let expected = ("HR-902", Some(DeviceLocation::Cpu));
            assert_eq!((finding.code.id, finding.device), expected);
        }
    }
}
