//! Whether a function is the same for a sample alone and in a batch, for every function of `nn`.

mod gradients;
mod names;

use candle_core::{DType, Device, Result};

use crate::check::rounding;
use crate::functions::alone::{differences, off_in_sums};
use crate::functions::{Argument, Kind, all};

#[test]
fn no_function_depends_on_the_cut() -> Result<()> {
    let mut differing = Vec::new();
    for case in all() {
        let mut found = Vec::new();
        for &dtype in &case.dtypes {
            for length in [1, 3, 8] {
                match differences(&case, length, &[2, 3, 8], (dtype, &Device::Cpu)) {
                    Ok(differences) => found.extend(differences),
                    Err(error) => found.push(format!("{} ({dtype:?}): {error}", case.name)),
                }
            }
        }
        if !found.is_empty() {
            println!("{}", found[..found.len().min(6)].join("\n"));
            differing.push(case.name);
        }
    }
    println!("figure: cut/functions = {} functions", all().len());
    println!(
        "figure: cut/functions_that_differ = {} functions",
        differing.len()
    );
    assert!(differing.is_empty(), "{differing:#?}");
    Ok(())
}

/// In f16 a sum of ones stops at 2048, in bf16 at 256.
#[test]
fn sums_over_65536_tokens_are_those_of_f64() -> Result<()> {
    const TOKENS: usize = 1 << 16;
    let length = 8;
    let mut wrong = Vec::new();
    for case in all() {
        let arguments = case.arguments(length);
        let sums = arguments
            .iter()
            .any(|argument| matches!(argument, Argument::Shared(_)));
        let skipped = case.no_sums.is_some() || matches!(case.kind, Kind::Batch(_));
        if skipped || !(sums || matches!(case.kind, Kind::Mean(_))) {
            continue;
        }
        for &dtype in &case.dtypes {
            let limit = match dtype {
                DType::F64 => continue,
                // Equal numbers round in the same direction each time: at most 2^16 times half a unit in the last place, 4e-3.
                DType::F32 => 1e-3,
                half => 2. * rounding(half),
            };
            let off = off_in_sums(&case, length, TOKENS / length, (dtype, &Device::Cpu))?;
            if off > limit {
                wrong.push(format!("{} ({dtype:?}): {off:e} off", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}
