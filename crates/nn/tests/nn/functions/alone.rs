//! Compares samples alone with the same samples in a batch.

use candle_core::{DType, Device, Result, Tensor, Var};

use super::{Argument, Case, Kind};
use crate::check::{factors, rounding};

/// What a function returns, and the gradients of a weighted sum of it. All of it on the CPU.
struct Outcome {
    output: Tensor,
    /// For each argument, unless it has none.
    gradients: Vec<Option<Tensor>>,
    /// How much counts, where the output is a mean.
    weight: f64,
}

/// Runs a function and differentiates it. All samples have the same weights in the sum, which are multiplied by `factor`.
fn outcome(case: &Case, arguments: &[Tensor], factor: f64) -> Result<Outcome> {
    let vars = arguments
        .iter()
        .map(|values| match values.dtype().is_float() {
            true => Var::from_tensor(values).map(Some),
            false => Ok(None),
        });
    let vars = vars.collect::<Result<Vec<_>>>()?;
    let given = vars.iter().zip(arguments);
    let given = given.map(|(var, values)| var.as_ref().map_or(values, |var| var.as_tensor()));
    let given: Vec<_> = given.cloned().collect();
    let output = case.run(&given)?;
    let weighted = match case.kind {
        // The gradient of a mean is small enough as it is.
        Kind::Mean(_) => output.sum_all()?,
        _ => {
            let dims: Vec<_> = [1].iter().chain(&output.dims()[1..]).copied().collect();
            let factors = (factors(&dims) * factor)?.to_dtype(output.dtype())?;
            output
                .broadcast_mul(&factors.to_device(output.device())?)?
                .sum_all()?
        }
    };
    let mut store = weighted.backward()?;
    let gradients = vars.iter().map(|var| {
        let gradient = var.as_ref().and_then(|var| store.remove(var));
        gradient
            .map(|gradient| gradient.to_device(&Device::Cpu))
            .transpose()
    });
    let counted: Vec<_> = arguments
        .iter()
        .map(|x| x.to_device(&Device::Cpu))
        .collect::<Result<_>>()?;
    Ok(Outcome {
        gradients: gradients.collect::<Result<_>>()?,
        output: output.to_device(&Device::Cpu)?,
        weight: match case.kind {
            Kind::Mean(weight) => weight(&counted)?,
            _ => 1.,
        },
    })
}

pub fn f64s(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// The largest difference, in proportion to the largest value; infinite for another number of values, or for NaN.
pub fn off(found: &[f64], expected: &[f64]) -> f64 {
    let scale = expected
        .iter()
        .fold(1e-30, |most: f64, x| most.max(x.abs()));
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let most = differences.fold(0., |most: f64, x| if x <= most { most } else { x });
    match found.len() == expected.len() && most.is_finite() {
        true => most / scale,
        false => f64::INFINITY,
    }
}

/// Arguments for samples with these seeds, one after the other.
pub fn batch(
    case: &Case,
    length: usize,
    seeds: impl Iterator<Item = u64> + Clone,
    (dtype, device): (DType, &Device),
) -> Result<Vec<Tensor>> {
    let arguments = case.arguments(length).into_iter().enumerate();
    let values = arguments.map(|(place, argument)| {
        let values = match argument {
            Argument::Shared(_) => argument.values(place, 0)?,
            _ => {
                let samples = seeds.clone().map(|seed| argument.values(place, seed));
                Tensor::cat(&samples.collect::<Result<Vec<_>>>()?, 0)?
            }
        };
        let values = match values.dtype().is_float() {
            true => values.to_dtype(dtype)?,
            false => values,
        };
        values.to_device(device)
    });
    values.collect()
}

/// What differs between samples alone and in batches of these sizes: nothing, if the function does not depend on the cut.
pub fn differences(
    case: &Case,
    length: usize,
    sizes: &[usize],
    kind: (DType, &Device),
) -> Result<Vec<String>> {
    let (dtype, device) = kind;
    let most = sizes.iter().copied().max().unwrap_or(1) as u64;
    let alone =
        (0..most).map(|seed| outcome(case, &batch(case, length, seed..seed + 1, kind)?, 1.));
    let alone = alone.collect::<Result<Vec<_>>>()?;
    let arguments = case.arguments(length);
    let mut found = Vec::new();
    // Each of the sums that are compared is rounded to the type.
    let limit = 4. * rounding(dtype);
    for &size in sizes {
        let whole = outcome(case, &batch(case, length, 0..size as u64, kind)?, 1.)?;
        let mut differs = |what: &str, sample: usize, by: String| {
            found.push(format!(
                "{} ({dtype:?}, length {length}): {what} of sample {sample} of {size}: {by}",
                case.name
            ));
        };
        for (sample, alone) in alone.iter().enumerate().take(size) {
            let kinds = (alone.output.dtype(), whole.output.dtype());
            if kinds.0 != kinds.1 {
                differs(
                    "type",
                    sample,
                    format!("{:?} in the batch, {:?} alone", kinds.1, kinds.0),
                );
            }
            if let Kind::Batch(_) = case.kind {
                continue;
            }
            let is_exact = matches!(case.kind, Kind::Rows) && device.is_cpu();
            let limit = if is_exact { 0. } else { limit };
            let part = |tensor: &Tensor| f64s(&tensor.narrow(0, sample, 1)?);
            if let Kind::Rows | Kind::Sums = case.kind {
                if whole.output.dims()[1..] != alone.output.dims()[1..] {
                    differs("shape", sample, format!("{:?}", whole.output.shape()));
                    continue;
                }
                let off = off(&part(&whole.output)?, &f64s(&alone.output)?);
                if off > limit {
                    differs("value", sample, format!("{off:e} off"));
                }
            }
            for (place, argument) in arguments.iter().enumerate() {
                if !matches!(argument, Argument::Sample(_)) {
                    continue;
                }
                let (Some(of_whole), Some(of_alone)) =
                    (&whole.gradients[place], &alone.gradients[place])
                else {
                    if case.no_differences.is_none() {
                        differs("gradient", sample, "missing".into());
                    }
                    continue;
                };
                if of_whole.dtype() != dtype || of_alone.dtype() != dtype {
                    differs(
                        "type of the gradient",
                        sample,
                        format!("{:?}", of_whole.dtype()),
                    );
                }
                let times = |values: Vec<f64>, weight: f64| {
                    values.into_iter().map(|x| x * weight).collect::<Vec<_>>()
                };
                let of_whole = times(part(of_whole)?, whole.weight);
                let off = off(&of_whole, &times(f64s(of_alone)?, alone.weight));
                if off > limit {
                    differs(
                        "gradient",
                        sample,
                        format!("argument {place} is {off:e} off"),
                    );
                }
            }
        }
        if let Kind::Batch(_) = case.kind {
            continue;
        }
        let sum = |of: &dyn Fn(&Outcome) -> Result<Vec<f64>>| -> Result<Vec<f64>> {
            let mut sum: Vec<f64> = Vec::new();
            for alone in alone.iter().take(size) {
                let part = of(alone)?;
                sum.resize(part.len(), 0.);
                sum.iter_mut()
                    .zip(part)
                    .for_each(|(sum, x)| *sum += x * alone.weight);
            }
            Ok(sum)
        };
        if let Kind::Mean(_) = case.kind {
            let expected = sum(&|alone| f64s(&alone.output))?;
            let found: Vec<_> = f64s(&whole.output)?
                .iter()
                .map(|x| x * whole.weight)
                .collect();
            let off = off(&found, &expected);
            if off > limit {
                differs("mean", size, format!("{off:e} off"));
            }
        }
        for (place, argument) in arguments.iter().enumerate() {
            let Argument::Shared(_) = argument else {
                continue;
            };
            let Some(of_whole) = &whole.gradients[place] else {
                if case.no_differences.is_none() {
                    differs("gradient", size, "missing".into());
                }
                continue;
            };
            let expected = sum(&|alone| {
                let gradient = alone.gradients[place].as_ref();
                gradient.map_or(Ok(Vec::new()), f64s)
            })?;
            let found: Vec<_> = f64s(of_whole)?.iter().map(|x| x * whole.weight).collect();
            let off = off(&found, &expected);
            if off > limit {
                differs(
                    "sum of gradients",
                    size,
                    format!("argument {place} is {off:e} off"),
                );
            }
        }
    }
    Ok(found)
}

/// How far the gradients of parameters, and a mean, are off if one sample comes `count` times: against f64, in proportion.
pub fn off_in_sums(
    case: &Case,
    length: usize,
    count: usize,
    (dtype, device): (DType, &Device),
) -> Result<f64> {
    let once = batch(case, length, 0..1, (dtype, &Device::Cpu))?;
    let exact = once.iter().map(|values| match values.dtype().is_float() {
        true => values.to_dtype(DType::F64),
        false => Ok(values.clone()),
    });
    // What is added up stays in the range of f16.
    let factor = 1. / 1024.;
    let exact = outcome(case, &exact.collect::<Result<Vec<_>>>()?, factor)?;
    let arguments = case.arguments(length);
    let many = once
        .iter()
        .zip(&arguments)
        .map(|(values, argument)| match argument {
            Argument::Shared(_) => Ok(values.clone()),
            _ => values.repeat([&[count], &vec![1; values.rank() - 1][..]].concat()),
        });
    let many = many.map(|values: Result<Tensor>| values?.to_device(device));
    let whole = outcome(case, &many.collect::<Result<Vec<_>>>()?, factor)?;
    let (mut most, times) = match case.kind {
        Kind::Mean(_) => (off(&f64s(&whole.output)?, &f64s(&exact.output)?), 1.),
        _ => (0., count as f64),
    };
    for (place, argument) in arguments.iter().enumerate() {
        let (Argument::Shared(_), Some(found)) = (argument, &whole.gradients[place]) else {
            continue;
        };
        let exact = exact.gradients[place]
            .as_ref()
            .map_or(Ok(Vec::new()), f64s)?;
        let exact: Vec<_> = exact.into_iter().map(|x| x * times).collect();
        most = most.max(off(&f64s(found)?, &exact));
    }
    Ok(most)
}

/// How far a batch of two samples on a device is off, in its output and its gradients, from the same on the CPU.
pub fn off_on_device(case: &Case, length: usize, (dtype, device): (DType, &Device)) -> Result<f64> {
    let on = |device: &Device| outcome(case, &batch(case, length, 0..2, (dtype, device))?, 1.);
    let (found, expected) = (on(device)?, on(&Device::Cpu)?);
    if (found.output.dims(), found.output.dtype())
        != (expected.output.dims(), expected.output.dtype())
    {
        return Ok(f64::INFINITY);
    }
    let mut most = off(&f64s(&found.output)?, &f64s(&expected.output)?);
    for pair in found.gradients.iter().zip(&expected.gradients) {
        most = most.max(match pair {
            (Some(found), Some(expected)) => off(&f64s(found)?, &f64s(expected)?),
            (None, None) => 0.,
            _ => f64::INFINITY,
        });
    }
    Ok(most)
}
