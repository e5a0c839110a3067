//! Gradients on CUDA of candle's operations, and of those of `nn` in their place, against central differences on the CPU.

use candle_core::{DType, Device, Result};

use crate::candle_operations::{LAYOUTS, Verdict, case, cases, changes, judge, known_on_cuda};
use crate::check::{agrees_on, numbers};
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
