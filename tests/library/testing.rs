//! The feature `testing`.

use candle_core::{Device, Tensor};
use candle_headroom::testing::{Faults, probe};

#[test]
fn only_the_armed_point_fails() {
    let x = Tensor::new(1f32, &Device::Cpu).unwrap();
    let armed = Faults::at(1).arm();
    assert!(probe(&x).is_ok() && probe(&x).is_err() && probe(&x).is_ok());
    assert_eq!((armed.points(), armed.fired()), (3, 1));
}

#[test]
fn faults_that_are_replaced_or_dropped_are_disarmed() {
    let x = Tensor::new(1f32, &Device::Cpu).unwrap();
    let first = Faults::at(0).times(9).arm();
    let second = Faults::at(1).arm();
    assert!(probe(&x).is_ok());
    drop(first);
    assert!(probe(&x).is_err(), "the second faults are still armed");
    drop(second);
    assert!(probe(&x).is_ok());
}

/// What fails after an exchange changes no count of points.
#[test]
fn exchanges_are_no_points() {
    let x = Tensor::new(1f32, &Device::Cpu).unwrap();
    let armed = Faults::after_exchange(0).arm();
    assert!(probe(&x).is_ok());
    assert_eq!((armed.points(), armed.fired()), (1, 0));
}
