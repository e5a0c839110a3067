//! Each operation of candle-core's table, in a model: what is known to be wrong is found, and what is right is not refused.

use candle_core::{DType, Result, Tensor};
use candle_headroom_nn::{Audit, AuditError, Received, audit};
use candle_nn::VarMap;

use super::{names, put, wave};
use crate::candle_operations::{self, LAYOUTS, Layout, Operation, case, known, operations};

/// Audits a model with the operation in its middle: operands that are Vars times gates that are Vars, the operation, and a layer. With
/// `twice`, the operands have a second consumer.
fn audited(
    operation: &Operation,
    layout: Layout,
    twice: bool,
    dtype: DType,
) -> std::result::Result<Audit, AuditError> {
    let varmap = VarMap::new();
    let values = case(operation, layout, twice).inputs;
    let mut operands = Vec::new();
    for (place, (values, operand)) in values.iter().zip(&operation.operands).enumerate() {
        let layout = match layout {
            Layout::Broadcast if !operand.broadcasts => Layout::Contiguous,
            layout => layout,
        };
        let gates = (wave(values.dims(), place)? * 0.05)?;
        operands.push((
            put(&varmap, &format!("values.{place}"), values, dtype)?,
            put(&varmap, &format!("gates.{place}"), &gates, dtype)?,
            layout,
            operand.dims.clone(),
        ));
    }
    let mut head: Option<Tensor> = None;
    let audit = audit(&varmap, || {
        let operands = operands.iter().map(|(values, gates, layout, dims)| {
            let gated = (values * (gates.tanh()? + 1.)?)?;
            layout.view(&gated, dims)
        });
        let operands = operands.collect::<Result<Vec<_>>>()?;
        let output = (operation.apply)(&operands)?.flatten_all()?.unsqueeze(0)?;
        let head = match &head {
            Some(head) => head,
            // Its shape is that of the output.
            None => {
                let size = 0.4 / (output.elem_count() as f64).sqrt();
                let values = (wave(&[output.elem_count(), 3], 5)? * size)?;
                head.insert(put(&varmap, "head", &values, dtype)?)
            }
        };
        let mut loss = weighted(&output.matmul(head)?.tanh()?)?;
        if twice {
            for operand in &operands {
                loss = (loss + weighted(operand)?)?;
            }
        }
        Ok(loss)
    });
    audit.slopes()
}

fn weighted(tensor: &Tensor) -> Result<Tensor> {
    let weights = (wave(tensor.dims(), 11)? + 1.5)?;
    (tensor * weights.to_dtype(tensor.dtype())?)?.sum_all()
}

#[test]
fn each_known_fault_is_found_and_nothing_right_is_refused() {
    let (mut wrong, mut found, mut right, mut refused, mut undecided) = (0, 0, 0, 0, 0);
    let mut complaints = Vec::new();
    for operation in operations() {
        for layout in LAYOUTS {
            for twice in [false, true] {
                let name = case(&operation, layout, twice).name;
                let verdict = known(&name);
                let is_wrong = match verdict {
                    candle_operations::Verdict::Wrong => true,
                    candle_operations::Verdict::Right => false,
                    _ => continue,
                };
                let audits = [DType::F64, DType::F32].map(|dtype| {
                    let audit = audited(&operation, layout, twice, dtype);
                    (
                        dtype,
                        audit.unwrap_or_else(|error| panic!("{name}: {error}")),
                    )
                });
                let mut is_found = true;
                let mut is_refused = false;
                for (dtype, audit) in &audits {
                    let named = names(audit, Received::Wrong);
                    let unclear = match is_wrong {
                        true => 0,
                        false => names(audit, Received::Undecided).len(),
                    };
                    // The layer after the operation, whose gradient is right.
                    let is_fair = !named.contains(&"head");
                    let is_named = !named.is_empty();
                    if is_named != is_wrong || !is_fair || unclear > 0 {
                        complaints.push(format!("{name}, {dtype:?}, {verdict:?}: {audit:#}"));
                    }
                    is_found &= is_named;
                    is_refused |= !is_fair || is_named && !is_wrong;
                    undecided += unclear;
                }
                match is_wrong {
                    true => wrong += 1,
                    false => right += 1,
                }
                found += usize::from(is_wrong && is_found);
                refused += usize::from(is_refused);
            }
        }
    }
    println!("figure: audit/wrong_gradients = {wrong} cases");
    println!("figure: audit/wrong_gradients_found = {found} cases");
    println!("figure: audit/right_gradients = {right} cases");
    println!("figure: audit/right_gradients_refused = {refused} cases");
    println!("figure: audit/right_gradients_undecided = {undecided} Vars");
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert!(wrong >= 32 && found == wrong && refused == 0 && undecided == 0);
}

/// The factor is that of candle's gradient: of four elements in the window, one is the largest.
#[test]
fn the_factor_is_reported() -> Result<()> {
    let varmap = VarMap::new();
    let kernel = put(&varmap, "conv.weight", &wave(&[2, 1, 3, 3], 1)?, DType::F32)?;
    let head = put(&varmap, "head.weight", &wave(&[8, 3], 2)?, DType::F32)?;
    let x = wave(&[5, 1, 6, 6], 3)?.to_dtype(DType::F32)?;
    let report = audit(&varmap, || {
        let y = x.conv2d(&kernel, 0, 1, 1, 1)?.max_pool2d(2)?;
        y.flatten_from(1)?.matmul(&head)?.sqr()?.mean_all()
    });
    let report = report.slopes()?;
    assert_eq!(names(&report, Received::Wrong), ["conv.weight"]);
    assert_eq!(names(&report, Received::Right), ["head.weight"]);
    let slope = report
        .get("conv.weight")
        .and_then(|var| var.slope)
        .expect("a slope");
    let factor = slope.factor().expect("a measured slope");
    assert!((factor - 0.25).abs() < 2e-3, "{factor}");
    assert_eq!(slope.vars, 1);
    let text = report.to_string();
    assert!(
        text.starts_with("2 Vars: wrong 1, right 1\nwrong\n  conv.weight  [2, 1, 3, 3]  norm "),
        "{text}"
    );
    assert!(text.contains(", 0.25"), "{text}");
    let error = report.check().unwrap_err().to_string();
    assert!(
        error.starts_with("the gradient of `conv.weight` is not the slope of the loss"),
        "{error}"
    );
    report.check_except(["conv.*"])?;
    Ok(())
}
