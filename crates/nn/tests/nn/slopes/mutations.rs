//! Backward passes that are wrong on purpose, in one place each.

use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor};
use candle_headroom_nn::{Audit, AuditError, Received, audit};
use candle_nn::VarMap;

use super::{names, put, wave};

/// x + x² with a backward pass that is right or wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mutation {
    None,
    /// Times 1.01.
    Factor,
    Sign,
    /// Without the term of x.
    MissingTerm,
    /// Zero for one element of all, not that with the least gradient.
    OneElement,
    /// Rows the other way around: the norm is right.
    Mixed,
    Zeros,
}

use Mutation::{Factor, MissingTerm, Mixed, OneElement, Sign, Zeros};

impl CustomOp1 for Mutation {
    fn name(&self) -> &'static str {
        "mutation"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (start, end) = layout.contiguous_offsets().expect("contiguous");
        let storage = match storage {
            CpuStorage::F64(x) => {
                CpuStorage::F64(x[start..end].iter().map(|x| x + x * x).collect())
            }
            CpuStorage::F32(x) => {
                CpuStorage::F32(x[start..end].iter().map(|x| x + x * x).collect())
            }
            _ => candle_core::bail!("f64 or f32"),
        };
        Ok((storage, layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let right = (gradient * x.affine(2., 1.)?)?;
        let wrong = match self {
            Self::None => right,
            Self::Factor => (right * 1.01)?,
            Self::Sign => right.neg()?,
            Self::MissingTerm => (gradient * (x * 2.)?)?,
            Self::OneElement => {
                let sizes: Vec<f64> = right
                    .abs()?
                    .to_dtype(DType::F64)?
                    .flatten_all()?
                    .to_vec1()?;
                let mut places: Vec<_> = (0..sizes.len()).collect();
                places.sort_by(|a, b| sizes[*a].total_cmp(&sizes[*b]));
                let mut mask = vec![1f64; sizes.len()];
                mask[places[sizes.len() * 3 / 4]] = 0.;
                let mask = Tensor::from_vec(mask, x.shape(), &Device::Cpu)?;
                (right * mask.to_dtype(x.dtype())?)?
            }
            Self::Mixed => right.flip(&[0])?,
            Self::Zeros => right.zeros_like()?,
        };
        Ok(Some(wrong))
    }
}

const MUTATIONS: [Mutation; 6] = [Factor, Sign, MissingTerm, OneElement, Mixed, Zeros];

/// Where the operation is applied.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    /// To the weight of the second layer.
    Weight,
    /// To the output of the first layer.
    Hidden,
}

/// Four layers of 8 × 8, with biases.
fn audited(
    mutation: Mutation,
    place: Place,
    dtype: DType,
) -> std::result::Result<Audit, AuditError> {
    let varmap = VarMap::new();
    let mut layers = Vec::new();
    for layer in 0..4 {
        let weight = (wave(&[8, 8], layer)? * 0.5)?;
        let bias = match layer {
            0 => (wave(&[8], layer)? * 0.1)?,
            _ => wave(&[8], layer)?.zeros_like()?,
        };
        layers.push((
            put(&varmap, &format!("layer{layer}.weight"), &weight, dtype)?,
            put(&varmap, &format!("layer{layer}.bias"), &bias, dtype)?,
        ));
    }
    let x = wave(&[5, 8], 9)?.to_dtype(dtype)?;
    let report = audit(&varmap, || {
        let mut y = x.clone();
        for (layer, (weight, bias)) in layers.iter().enumerate() {
            let weight = match (layer, place) {
                (1, Place::Weight) => weight.apply_op1(mutation)?,
                _ => weight.clone(),
            };
            y = y.matmul(&weight)?.broadcast_add(bias)?.tanh()?;
            if layer == 0 && place == Place::Hidden {
                y = y.apply_op1(mutation)?;
            }
        }
        y.sqr()?.mean_all()
    });
    report.slopes()
}

#[test]
fn a_wrong_backward_pass_is_found_down_to_the_var() {
    for dtype in [DType::F64, DType::F32] {
        for mutation in MUTATIONS {
            let report = audited(mutation, Place::Weight, dtype).unwrap();
            assert_eq!(
                names(&report, Received::Wrong),
                ["layer1.weight"],
                "{mutation:?} {dtype:?} {report:#}"
            );
            assert_eq!(
                report.count(Received::Right),
                7,
                "{mutation:?} {dtype:?} {report:#}"
            );
            let slope = report
                .get("layer1.weight")
                .and_then(|var| var.slope)
                .expect("a slope");
            let factor = slope.factor().expect("a measured slope");
            let expected = match mutation {
                Factor => Some(1.01),
                Sign => Some(-1.),
                Zeros => Some(0.),
                _ => None,
            };
            if let Some(expected) = expected {
                assert!(
                    (factor - expected).abs() < 2e-3,
                    "{mutation:?} {dtype:?}: {factor}"
                );
            }

            let report = audited(mutation, Place::Hidden, dtype).unwrap();
            let wrong = names(&report, Received::Wrong);
            assert_eq!(
                wrong,
                ["layer0.bias", "layer0.weight"],
                "{mutation:?} {dtype:?} {report:#}"
            );
            assert_eq!(
                report.count(Received::Right),
                6,
                "{mutation:?} {dtype:?} {report:#}"
            );
        }
        for place in [Place::Weight, Place::Hidden] {
            let report = audited(Mutation::None, place, dtype).unwrap();
            assert_eq!(report.count(Received::Right), 8, "{dtype:?} {report:#}");
        }
    }
}

/// One element of 4,096 has no gradient: in a direction along the gradient it is nothing, in f64 it is far above the tolerance.
#[test]
fn one_element_of_many_is_found() -> Result<()> {
    let varmap = VarMap::new();
    let weight = put(&varmap, "weight", &wave(&[64, 64], 1)?, DType::F64)?;
    let other = put(&varmap, "other", &wave(&[64, 64], 2)?, DType::F64)?;
    let x = wave(&[4, 64], 3)?;
    for (mutation, expected) in [
        (OneElement, Received::Wrong),
        (Mutation::None, Received::Right),
    ] {
        let report = audit(&varmap, || {
            let y = x.matmul(&weight.apply_op1(mutation)?)?;
            (y * 0.05)?.tanh()?.matmul(&other)?.sqr()?.mean_all()
        });
        let report = report.slopes()?;
        let received = |name| report.get(name).expect("a Var").received;
        assert_eq!(received("weight"), expected, "{report:#}");
        assert_eq!(received("other"), Received::Right, "{report:#}");
    }
    Ok(())
}

/// Where weights are zeros at first, gradients before them are zeros too, right or wrong; so slopes are measured nearby.
#[test]
fn zeros_hide_nothing() -> Result<()> {
    for (mutation, dtype, wrong) in [
        (Mutation::None, DType::F32, vec![]),
        (Sign, DType::F32, vec!["a"]),
        (Factor, DType::F64, vec!["a"]),
    ] {
        let varmap = VarMap::new();
        let a = put(&varmap, "a", &wave(&[6, 2], 1)?, dtype)?;
        let b = put(&varmap, "b", &wave(&[2, 6], 2)?.zeros_like()?, dtype)?;
        let x = wave(&[5, 6], 3)?.to_dtype(dtype)?;
        let report = audit(&varmap, || {
            let y = (&x + x.matmul(&a)?.apply_op1(mutation)?.matmul(&b)?)?;
            (y - 0.3)?.sqr()?.mean_all()
        });
        let report = report.slopes()?;
        assert_eq!(names(&report, Received::Wrong), wrong, "{report:#}");
        // At zero itself.
        assert_eq!(report.get("a").and_then(|var| var.norm), Some(0.));
    }
    Ok(())
}
