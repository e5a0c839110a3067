//! Gradients on CUDA: of candle's operations, and of those of `nn` in their place, against central differences on the CPU; of every
//! function of `nn` against the CPU, whose gradients `tests/nn/cut/gradients.rs` compares with central differences.

use candle_core::{DType, Device, Result};

use crate::candle_operations::{LAYOUTS, Verdict, case, cases, changes, judge, known_on_cuda};
use crate::check::{agrees_on, numbers};
use crate::functions::layouts::Probe;
use crate::functions::{Case, all};
use crate::gpu::gpu;
use crate::replacements::replacements;

/// Fails where a candle mends or breaks an operation. The slopes are those of candle's loss on the CPU, so an output that is wrong there
/// alone counts too; there is none.
#[test]
fn the_known_ones_of_candle_are_wrong_and_no_others() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for dtype in [DType::F64, DType::F32] {
        let judged = cases().into_iter().map(|case| {
            let judged = judge(&case, &device, dtype);
            (case.name, judged)
        });
        let judged: Vec<_> = judged.collect();
        let changes = changes(&judged, known_on_cuda);
        assert!(changes.is_empty(), "{dtype:?}\n{}", changes.join("\n"));
    }
    Ok(())
}

#[test]
fn those_in_their_place_are_right_in_all_layouts() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for replacement in replacements() {
        for (layout, twice) in LAYOUTS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
            let case = case(&replacement.ours, layout, twice);
            let judged = judge(&case, &device, DType::F64);
            assert_eq!(
                judged.verdict,
                Verdict::Right,
                "{}: {}",
                case.name,
                judged.reason
            );
        }
    }
    Ok(())
}

#[test]
fn those_in_their_place_agree_with_the_cpu_in_each_type() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for replacement in replacements() {
        let operands = replacement.ours.operands.iter().zip(1..);
        let inputs: Vec<_> = operands
            .map(|(operand, seed)| numbers(&operand.dims, seed))
            .collect();
        let apply = &*replacement.ours.apply;
        println!("{}", replacement.ours.name);
        agrees_on(&device, &|x| apply(x), &inputs)?;
    }
    Ok(())
}

/// In f64, so that nothing but another order of sums is left. What differs in f32 and bf16 is in `layers/functions.rs`.
#[test]
fn those_of_every_function_are_the_cpus_in_all_layouts() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let (mut cases, mut wrong, mut failing) = (0, Vec::new(), Vec::new());
    let all = all();
    let is_differentiated = |case: &&Case| !case.only_cpu && case.no_differences.is_none();
    for case in all.iter().filter(is_differentiated) {
        for probe in Probe::all(case) {
            cases += 1;
            match probe.off_on_device(DType::F64, &device) {
                Ok(off) if off < 1e-10 => {}
                Ok(off) => wrong.push(format!("{}: {off:e} off", probe.name())),
                Err(error) => failing.push(format!("{}: {error}", probe.name())),
            }
        }
    }
    println!("figure: gradients/cuda/nn_cases = {cases} cases");
    println!(
        "figure: gradients/cuda/nn_cases_wrong = {} cases",
        wrong.len()
    );
    println!(
        "figure: gradients/cuda/nn_cases_failing = {} cases",
        failing.len()
    );
    assert!(
        wrong.is_empty() && failing.is_empty(),
        "wrong: {wrong:#?}\nfailing: {failing:#?}"
    );
    Ok(())
}
