//! Conversions.

use super::compute;

/// Checks `cvt` from the bits of a 64-bit float, first narrowed if `from` is `f32`.
fn check(op: &str, register: &str, rows: &[(f64, i64)]) {
    let inputs: Vec<[u64; 1]> = rows.iter().map(|(value, _)| [value.to_bits()]).collect();
    let source = if op.ends_with(".f32") { "%f1" } else { "%g1" };
    let widen = match register {
        "%h1" => "cvt.s64.s16 %d0, %h1;",
        "%r1" => "cvt.s64.s32 %d0, %r1;",
        _ => "mov.u64 %d0, %d4;",
    };
    let body =
        format!("mov.b64 %g1, %d1; cvt.rn.f32.f64 %f1, %g1; {op} {register}, {source}; {widen}");
    for (got, (value, want)) in compute(&body, &inputs).iter().zip(rows) {
        assert_eq!(*got as i64, *want, "{op} of {value}");
    }
}

#[test]
fn floats_to_integers() {
    check(
        "cvt.rzi.s32.f32",
        "%r1",
        &[
            (-2.9, -2),
            (1e20, i32::MAX as i64),
            (f64::NAN, 0),
            (-1e20, i32::MIN as i64),
        ],
    );
    check("cvt.rni.s32.f32", "%r1", &[(2.5, 2), (3.5, 4), (-2.5, -2)]);
    check("cvt.rmi.s32.f64", "%r1", &[(-2.1, -3)]);
    check("cvt.rpi.s32.f64", "%r1", &[(2.1, 3)]);
    check(
        "cvt.rzi.s64.f64",
        "%d4",
        &[(1e300, i64::MAX), (f64::NAN, i64::MIN)],
    );
    check(
        "cvt.rzi.u64.f32",
        "%d4",
        &[(-5.0, 0), (f64::NAN, i64::MIN), (f64::INFINITY, -1)],
    );
    check("cvt.rzi.u8.f32", "%h1", &[(300.0, 255), (-4.0, 0)]);
    check("cvt.rzi.s8.f32", "%h1", &[(-300.0, -128)]);
}

#[test]
fn integers_to_integers() {
    let out = compute(
        "cvt.s64.s8 %d4, %d1; cvt.u64.u8 %d5, %d1; shl.b64 %d5, %d5, 32; add.s64 %d0, %d4, %d5;",
        &[[0x1ff]],
    );
    assert_eq!(out, [0xff_0000_0000 - 1]);
    let out = compute(
        "cvt.u32.u64 %r1, %d1; cvt.sat.u8.s32 %h1, %r1; cvt.u64.u16 %d0, %h1;",
        &[[300], [u64::MAX]],
    );
    assert_eq!(out, [255, 0]);
    let out = compute(
        "cvt.sat.s16.s64 %h1, %d1; cvt.u64.u16 %d0, %h1;",
        &[[1 << 40], [u64::MAX]],
    );
    assert_eq!(out, [0x7fff, 0xffff]);
}

#[test]
fn to_narrow_floats() {
    let half =
        |kind: &str| format!("mov.b64 %g1, %d1; cvt.{kind}.f64 %h1, %g1; cvt.u64.u16 %d0, %h1;");
    // Just above a tie: rounding to 32 bits first would lose what decides.
    let above = 1.0 + 2f64.powi(-11) + 2f64.powi(-45);
    let rows =
        [1.0 + 2f64.powi(-11), above, 1e6, f64::NAN, 6e-8, -0.0].map(|value| [value.to_bits()]);
    assert_eq!(
        compute(&half("rn.f16"), &rows),
        [0x3c00, 0x3c01, 0x7c00, 0x7fff, 1, 0x8000]
    );
    assert_eq!(compute(&half("rz.f16"), &rows[1..3]), [0x3c00, 0x7bff]);
    assert_eq!(
        compute(&half("rp.bf16"), &[[1.0001f64.to_bits()]]),
        [0x3f81]
    );
    assert_eq!(
        compute(
            &half("rn.bf16"),
            &[[3.4e38f64.to_bits()], [above.to_bits()]]
        ),
        [0x7f80, 0x3f80]
    );
}

#[test]
fn integers_to_floats() {
    let body = "cvt.rn.f32.u64 %f1, %d1; mov.b32 %r1, %f1; cvt.u64.u32 %d0, %r1;";
    let tie = (1u64 << 60) + (1 << 36);
    let rows = [[tie], [tie + 1], [u64::MAX]];
    assert_eq!(
        compute(body, &rows),
        rows.map(|[value]| (value as f32).to_bits() as u64)
    );
    let body = "cvt.rz.f32.s64 %f1, %d1; mov.b32 %r1, %f1; cvt.u64.u32 %d0, %r1;";
    assert_eq!(
        compute(body, &[[i64::MAX as u64]]),
        [(2f32.powi(63).next_down()).to_bits() as u64]
    );
    let body = "cvt.rn.bf16.s64 %h1, %d1; cvt.u64.u16 %d0, %h1;";
    assert_eq!(
        compute(
            body,
            &[[(1 << 60) + (1 << 52)], [(1 << 60) + (1 << 52) + 1]]
        ),
        [0x5d80, 0x5d81]
    );
}

#[test]
fn saturated_and_whole_floats() {
    let body = |op: &str| format!("mov.b64 %g1, %d1; cvt.{op}.f64.f64 %g2, %g1; mov.b64 %d0, %g2;");
    let rows = [-1.5f64, 0.5, 2.5, f64::NAN].map(|value| [value.to_bits()]);
    assert_eq!(
        compute(&body("sat"), &rows),
        [0.0, 0.5, 1.0, 0.0].map(f64::to_bits)
    );
    assert_eq!(
        compute(&body("rni"), &rows[..3]),
        [-2.0, 0.0, 2.0].map(f64::to_bits)
    );
    assert_eq!(
        compute(&body("rmi"), &rows[..3]),
        [-2.0, 0.0, 2.0].map(f64::to_bits)
    );
}

#[test]
fn eight_bit_floats() {
    let back = "cvt.u16.u64 %h1, %d1; cvt.rn.f16x2.e4m3x2 %r1, %h1; mov.b32 {%h2, %h3}, %r1; cvt.f32.f16 %f1, %h2;
                cvt.rn.satfinite.e4m3x2.f32 %h4, 0f00000000, %f1; cvt.u64.u16 %d0, %h4;";
    for start in (0..256u64).step_by(32) {
        let codes: Vec<[u64; 1]> = (start..start + 32).map(|code| [code]).collect();
        for (got, [code]) in compute(back, &codes).iter().zip(&codes) {
            // Every code but the negative NaN comes back.
            assert_eq!(*got, if *code == 0xff { 0x7f } else { *code });
        }
    }
    let body = "mov.b64 %g1, %d1; cvt.rn.f32.f64 %f1, %g1; cvt.rn.satfinite.e4m3x2.f32 %h1, 0f3F800000, %f1;
                cvt.u64.u16 %d0, %h1;";
    let rows = [1000.0f64, -1000.0, 17.0, 19.0, 0.001].map(|value| [value.to_bits()]);
    assert_eq!(
        compute(body, &rows),
        [0x387e, 0x38fe, 0x3858, 0x385a, 0x3801]
    );
}
