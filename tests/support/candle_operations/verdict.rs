use std::panic::{AssertUnwindSafe, catch_unwind};

use candle_core::{DType, Device, Result, Tensor, Var};

use super::Case;

/// What `backward()` makes of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Its gradients are the slopes of its loss.
    Right,
    /// The loss or a gradient is another.
    Wrong,
    /// The backward pass returns an error or panics.
    Failing,
    /// The forward pass does.
    Refused,
}

/// A verdict with its reason.
#[derive(Clone, Debug)]
pub struct Judged {
    pub verdict: Verdict,
    pub reason: String,
}

/// Compares the gradients of a case on a device with the slopes of its loss, which the CPU computes in f64.
pub fn judge(case: &Case, device: &Device, dtype: DType) -> Judged {
    let (verdict, reason) = compare(case, device, dtype);
    Judged { verdict, reason }
}

fn compare(case: &Case, device: &Device, dtype: DType) -> (Verdict, String) {
    let place = |input: &Tensor| Var::from_tensor(&input.to_dtype(dtype)?.to_device(device)?);
    let vars: Result<Vec<_>> = case.inputs.iter().map(place).collect();
    let vars = vars.expect("Vars");
    let tensors: Vec<_> = vars.iter().map(|var| var.as_tensor().clone()).collect();
    let loss = match attempt(|| (case.run)(&tensors)) {
        Ok(loss) => loss,
        Err(error) => return (Verdict::Refused, error),
    };
    let gradients = match attempt(|| {
        let store = loss.backward()?;
        let gradients = vars.iter().map(|var| match store.get(var) {
            Some(gradient) => values(gradient),
            // Nothing is received where nothing depends on it.
            None => Ok(vec![0.; var.elem_count()]),
        });
        gradients.collect::<Result<Vec<_>>>()
    }) {
        Ok(gradients) => gradients,
        Err(error) => return (Verdict::Failing, error),
    };
    let slopes = slopes(case).expect("slopes");
    let rounding = if dtype == DType::F64 { 0. } else { 1e-4 };
    let tolerance = case.tolerance + rounding;
    let largest = slopes
        .iter()
        .flatten()
        .fold(1f64, |most, slope| most.max(slope.abs()));
    for (index, (found, slopes)) in gradients.iter().zip(&slopes).enumerate() {
        if found.len() != slopes.len() {
            let reason = format!("gradient {index} has {} elements", found.len());
            return (Verdict::Wrong, reason);
        }
        for (at, (found, slope)) in found.iter().zip(slopes).enumerate() {
            let off = (found - slope).abs();
            if off.is_nan() || off > tolerance * largest {
                let reason = format!(
                    "gradient {index} at {at} is {found:.6}, the slope {slope:.6}, largest {largest:.3}"
                );
                return (Verdict::Wrong, reason);
            }
        }
    }
    let expected = (case.run)(&case.inputs).and_then(|loss| values(&loss));
    let found = values(&loss);
    match (expected, found) {
        (Ok(expected), Ok(found))
            if (expected[0] - found[0]).abs() <= tolerance * 10. * expected[0].abs().max(1.) =>
        {
            (Verdict::Right, String::new())
        }
        (expected, found) => (Verdict::Wrong, format!("loss {found:?}, not {expected:?}")),
    }
}

/// Slopes of the loss by central differences, for each element of each input.
pub fn slopes(case: &Case) -> Result<Vec<Vec<f64>>> {
    let of_input = |index: usize| {
        let input = &case.inputs[index];
        let values = values(input)?;
        let loss = |at: usize, by: f64| -> Result<f64> {
            let mut values = values.clone();
            values[at] += by;
            let mut inputs = case.inputs.clone();
            inputs[index] = Tensor::from_vec(values, input.shape(), input.device())?;
            (case.run)(&inputs)?.to_scalar()
        };
        let step = case.step;
        let slope = |at| Ok((loss(at, step)? - loss(at, -step)?) / (2. * step));
        (0..values.len()).map(slope).collect()
    };
    (0..case.inputs.len()).map(of_input).collect()
}

fn values(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

fn attempt<T>(work: impl FnOnce() -> Result<T>) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().to_string()
        }),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or(panic.downcast_ref::<&str>().map(|text| text.to_string()));
            Err(format!("panicked: {}", text.unwrap_or_default()))
        }
    }
}
