//! Logits, losses and gradients beside transformers and PEFT.

use super::compared::{Expected, adapted, named, whole};
use super::{FAMILIES, case};

/// Logits are of size 1, sums of some dozen numbers of f32: other orders of the sums differ by some 1e-7.
const LOGITS: f64 = 1e-5;
/// As a part of the largest number; a gradient is a sum over all tokens.
const GRADIENTS: f64 = 1e-4;

/// Compares all cases, with blocks recomputed and kept.
fn check(kind: &str) {
    for name in FAMILIES {
        let folder = case(name);
        let expected = Expected::read(&folder).unwrap();
        let mut trained = match kind {
            "base" => whole(&folder).unwrap(),
            _ => adapted(&folder, &folder.join("adapter")).unwrap(),
        };
        for marks_blocks in [true, false] {
            trained.decoder.marks_blocks = marks_blocks;
            let (differences, _) = expected.compare(kind, &trained).unwrap();
            assert!(
                differences.logits < LOGITS && differences.gradients < GRADIENTS,
                "{name} {kind}: {differences:?}"
            );
        }
    }
}

#[test]
fn models_agree_with_transformers() {
    check("base");
}

#[test]
fn adapters_agree_with_peft() {
    check("lora");
}

#[test]
fn parameters_are_counted() {
    for name in FAMILIES {
        let trained = whole(&case(name)).unwrap();
        let vars = trained.vars.all_vars();
        let count: usize = vars.iter().map(|var| var.elem_count()).sum();
        assert_eq!(trained.config.parameters(), count, "{name}");
    }
}

#[test]
fn a_window_hides_what_is_outside_of_it() {
    // The first token is 5 positions back for the sixth one, and two layers hand it on by 4 each.
    let trained = whole(&case("mistral")).unwrap();
    let tokens: Vec<u32> = (0..12).collect();
    let mut others = tokens.clone();
    others[0] = 13;
    let logits = |tokens: &[u32]| trained.decoder.forward(&super::text(tokens)).unwrap();
    let (a, b) = (logits(&tokens), logits(&others));
    let at =
        |logits: &candle_core::Tensor, time| super::numbers(&logits.narrow(1, time, 1).unwrap());
    assert_ne!(at(&a, 8), at(&b, 8));
    assert_eq!(at(&a, 9), at(&b, 9));
}

/// The largest of numbers is that of those that are not NaN, so equal ones must not be all that is asked for.
#[test]
fn what_is_not_a_number_does_not_agree() {
    let folder = case("llama-2");
    let trained = whole(&folder).unwrap();
    let var = &named(&trained.vars)[0].1;
    var.set(&(var.as_tensor() * f64::NAN).unwrap()).unwrap();
    let compared = Expected::read(&folder).unwrap().compare("base", &trained);
    let error = compared.map(|(differences, _)| differences).unwrap_err();
    assert!(error.to_string().contains("not finite"), "{error}");
}
