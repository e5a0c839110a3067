//! `UnreachedParameters`: into other errors and out again, and its texts.

use candle_headroom::error::{UnreachedParameters, WindowLost};

use super::*;

/// The Vars of a model of 28 layers.
fn layers() -> Vec<String> {
    let parts = [
        "input_layernorm.weight",
        "mlp.down_proj.weight",
        "mlp.gate_proj.weight",
        "mlp.up_proj.weight",
        "post_attention_layernorm.weight",
        "self_attn.k_proj.bias",
        "self_attn.k_proj.weight",
        "self_attn.o_proj.weight",
        "self_attn.q_proj.bias",
        "self_attn.q_proj.weight",
        "self_attn.v_proj.bias",
        "self_attn.v_proj.weight",
    ];
    let layers = (0..28).flat_map(|layer| parts.map(|part| format!("model.layers.{layer}.{part}")));
    ["model.embed_tokens.weight".to_owned()]
        .into_iter()
        .chain(layers)
        .collect()
}

fn many() -> UnreachedParameters {
    UnreachedParameters::new(layers(), ["lm_head.weight".to_owned()])
}

#[test]
fn it_goes_through_other_errors_with_its_type() {
    let find = |error: &Error| error.downcast_ref::<UnreachedParameters>() == Some(&many());
    let error = || Error::from(many());
    assert!(find(&error()));
    assert!(error().resource_exhausted().is_none() && error().device_fault().is_none());
    // Into candle's error and back: the same variant, not one around another.
    let back = Error::from(CandleError::from(error()));
    assert!(matches!(&back, Error::UnreachedParameters(unreached) if **unreached == many()));
    let back = Error::from(with_backtrace(CandleError::from(error())));
    assert!(matches!(&back, Error::UnreachedParameters(_)));
    for wrapped in [
        CandleError::from(error()).context("in run 7"),
        wrapped_context(error()),
        wrapped_context(many()),
        wrapped_context(UserError::from(error())),
        wrapped_context(UserError::from(CandleError::from(error()))),
    ] {
        assert!(wrapped.resource_exhausted().is_none());
        assert!(find(&Error::from(wrapped)));
    }
    let any = anyhow::Error::from(error()).context("outer");
    assert!(matches!(
        any.downcast_ref(),
        Some(Error::UnreachedParameters(_))
    ));
    assert!(find(&Error::external(any)));
    assert!(find(&WindowLost::new(8, many()).into()));
}

/// Names may be anything, also what looks like a status.
#[test]
fn a_name_is_no_status() {
    let odd = "DriverError(CUDA_ERROR_OUT_OF_MEMORY";
    let error = CandleError::from(Error::from(UnreachedParameters::new([odd], [])));
    assert!(error.to_string().contains(odd));
    assert!(error.resource_exhausted().is_none());
    assert!(matches!(Error::from(error), Error::UnreachedParameters(_)));
}

#[test]
fn hundreds_of_names_are_a_few_lines() {
    let unreached = many();
    assert_eq!((unreached.names.len(), unreached.trainable()), (337, 338));
    let short = unreached.to_string();
    let begin = "no gradient for 337 of 338 parameters: model.embed_tokens: weight (1 of 1); model.layers.*: \
                 input_layernorm.weight, mlp.down_proj.weight, mlp.gate_proj.weight, … (336 of 336); an operation";
    assert!(short.starts_with(begin), "{short}");
    assert!(
        short.contains("`use candle_headroom::nn as candle_nn;`"),
        "{short}"
    );
    assert_eq!(short.lines().count(), 1);

    let long = format!("{unreached:#}");
    let begin = "no gradient for 337 of 338 parameters\n  model.embed_tokens: weight (1 of 1)\n  model.layers.*: ";
    assert!(long.starts_with(begin), "{long}");
    for operation in UnreachedParameters::WITHOUT_BACKWARD {
        assert!(long.contains(operation), "{operation}");
    }
    assert!(
        long.contains("candle-headroom-nn") && long.contains("allow_unreached"),
        "{long}"
    );
    assert!(long.lines().count() < 14, "{long}");
    // What `main` and `unwrap` show. candle's errors have one text for both.
    assert_eq!(format!("{unreached:?}"), long);
    assert_eq!(format!("{:?}", Error::from(many())), long);
    assert!(format!("{:?}", CandleError::from(Error::from(many()))).contains(&short));
}

/// Modules that are not numbered are not listed without end.
#[test]
fn modules_without_numbers_are_counted() {
    let letters = 'a'..='z';
    let names = letters
        .clone()
        .flat_map(|a| letters.clone().map(move |b| format!("{a}{b}.weight")));
    let unreached = UnreachedParameters::new(names, []);
    let short = unreached.to_string();
    assert!(
        short.contains("ac: weight (1 of 1); and 673 more modules; "),
        "{short}"
    );
    let long = format!("{unreached:#}");
    assert!(long.contains("\n  and 636 more modules\n"), "{long}");
    assert!(
        long.contains("the model uses other Vars"),
        "all of them: {long}"
    );
}
