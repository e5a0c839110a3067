//! Against candle's own.

use super::*;

/// What a program does with any optimizer of candle's interface.
fn train<O: Optimizer>(dtype: DType, config: O::Config) -> Vec<Vec<f64>> {
    let model = Mlp::new(dtype);
    let mut optimizer = O::from_slice(&model.vars.iter().collect::<Vec<_>>(), config).unwrap();
    for step in 0..200 {
        let (x, y) = Mlp::data(24, dtype);
        let samples = |data: &Tensor| data.narrow(0, step % 17, 8).unwrap();
        let loss = model.loss(&samples(&x), &samples(&y)).unwrap();
        optimizer.backward_step(&loss).unwrap();
        optimizer.set_learning_rate(optimizer.learning_rate() * 0.995);
    }
    snapshot(&model.vars)
}

#[test]
fn adamw_trains_as_candles_does() {
    let start = snapshot(&Mlp::new(DType::F64).vars);
    for (dtype, tolerance) in AS_CANDLE {
        let theirs = train::<candle_nn::AdamW>(dtype, adamw());
        let ours = train::<AdamW>(dtype, adamw());
        assert!(distance(&ours, &start) > 0.1);
        let error = distance(&ours, &theirs);
        println!("AdamW against candle's, {dtype:?}: {error:e}");
        assert!(error <= tolerance, "{dtype:?}: {error:e}");
    }
}

#[test]
fn sgd_trains_as_candles_does() {
    let start = snapshot(&Mlp::new(DType::F64).vars);
    for (dtype, tolerance) in AS_CANDLE {
        let theirs = train::<candle_nn::SGD>(dtype, 0.05);
        let params = ParamsSgd {
            lr: 0.05,
            ..Default::default()
        };
        let ours = train::<Sgd>(dtype, params);
        assert!(distance(&ours, &start) > 0.1);
        let error = distance(&ours, &theirs);
        println!("Sgd against candle's, {dtype:?}: {error:e}");
        assert!(error <= tolerance, "{dtype:?}: {error:e}");
    }
}

/// The gradients are those of each one's own parameters, so that 200 steps carry rounding on; candle rounds moments and bias
/// corrections once more than a fused pass does.
const AS_CANDLE: [(DType, f64); 2] = [(DType::F64, 1e-14), (DType::F32, 2e-6)];
