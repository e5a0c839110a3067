//! Arithmetic on integers and floats.

use super::compute;

/// Checks one instruction `op d, a, b, c` on 32-bit operands.
fn check32(op: &str, rows: &[([u32; 3], u32)]) {
    let inputs: Vec<[u64; 3]> = rows.iter().map(|(row, _)| row.map(u64::from)).collect();
    let count = match op.split('.').next() {
        Some("neg" | "abs" | "clz" | "popc" | "brev" | "sqrt" | "rcp" | "ex2") => 1,
        Some("mad" | "fma" | "bfe" | "prmt" | "shf" | "slct") => 3,
        _ => 2,
    };
    let list = ["%r1", "%r2", "%r3"][..count].join(", ");
    let body = format!(
        "cvt.u32.u64 %r1, %d1; cvt.u32.u64 %r2, %d2; cvt.u32.u64 %r3, %d3; {op} %r4, {list}; cvt.u64.u32 %d0, %r4;"
    );
    for (index, (got, (row, want))) in compute(&body, &inputs).iter().zip(rows).enumerate() {
        assert_eq!(
            *got, *want as u64,
            "{op} row {index}: {row:x?} gives {got:x}"
        );
    }
}

#[test]
fn integers() {
    let minus = |value: i32| value as u32;
    check32("add.s32", &[([u32::MAX, 2, 0], 1)]);
    check32("sub.u32", &[([1, 2, 0], u32::MAX)]);
    check32("add.sat.s32", &[([i32::MAX as u32, 2, 0], i32::MAX as u32)]);
    check32("mul.hi.s32", &[([minus(-2), 3, 0], u32::MAX)]);
    check32("mul.hi.u32", &[([u32::MAX, u32::MAX, 0], u32::MAX - 1)]);
    check32("mad.lo.s32", &[([7, minus(-3), 1], minus(-20))]);
    check32("div.u32", &[([7, 0, 0], u32::MAX), ([7, 2, 0], 3)]);
    check32(
        "div.s32",
        &[
            ([minus(-7), 2, 0], minus(-3)),
            ([1 << 31, u32::MAX, 0], 1 << 31),
        ],
    );
    check32("rem.s32", &[([minus(-7), 2, 0], minus(-1)), ([5, 0, 0], 5)]);
    check32("min.s32", &[([minus(-7), 2, 0], minus(-7))]);
    check32("min.u32", &[([minus(-7), 2, 0], 2)]);
    check32("neg.s32", &[([1 << 31, 0, 0], 1 << 31)]);
    check32(
        "shl.b32",
        &[([1, 31, 0], 1 << 31), ([1, 32, 0], 0), ([1, 200, 0], 0)],
    );
    check32(
        "shr.s32",
        &[
            ([minus(-8), 1, 0], minus(-4)),
            ([minus(-8), 99, 0], u32::MAX),
        ],
    );
    check32("shf.l.wrap.b32", &[([0x8000_0001, 2, 33], 5)]);
    check32("bfe.u32", &[([0xabcd, 4, 8], 0xbc), ([1, 0, 0], 0)]);
    check32(
        "bfe.s32",
        &[([0xf0, 4, 4], u32::MAX), ([minus(-1), 30, 8], u32::MAX)],
    );
    check32(
        "prmt.b32",
        &[([0x3322_1180, 0x7766_5544, 0x8740], 0xff77_4480)],
    );
    check32("clz.b32", &[([1, 0, 0], 31), ([0, 0, 0], 32)]);
    check32("popc.b32", &[([0xff01, 0, 0], 9)]);
    check32("brev.b32", &[([1, 0, 0], 1 << 31)]);
}

#[test]
fn carries() {
    let body = "mov.b64 {%r1, %r2}, %d1; mov.b64 {%r3, %r4}, %d2; add.cc.u32 %r5, %r1, %r3; addc.u32 %r6, %r2, %r4;
                sub.cc.u32 %r7, %r1, %r3; subc.u32 %r8, %r2, %r4; mov.b64 %d5, {%r5, %r6}; mov.b64 %d6, {%r7, %r8};
                sub.s64 %d0, %d5, %d6; shr.u64 %d0, %d0, 1;";
    // (a + b) - (a - b) is twice b.
    let rows = [
        [0xffff_ffff, 1, 0],
        [0x1_0000_0000, 0xffff_ffff, 0],
        [3, 5, 0],
    ];
    assert_eq!(compute(body, &rows), [1, 0xffff_ffff, 5]);
}

#[test]
fn fields_and_tables() {
    let out = compute(
        "bfi.b64 %d0, %d1, %d2, 4, 8; ",
        &[[0xfff, 0, 0], [0, u64::MAX, 0]],
    );
    assert_eq!(out, [0xff0, 0xffff_ffff_ffff_f00f]);
    let body = "cvt.u32.u64 %r1, %d1; cvt.u32.u64 %r2, %d2; cvt.u32.u64 %r3, %d3; lop3.b32 %r4, %r1, %r2, %r3, 0xe8;
                cvt.u64.u32 %d0, %r4;";
    assert_eq!(compute(body, &[[0b1100, 0b1010, 0b0110]]), [0b1110]);
}

#[test]
fn floats() {
    let f = f32::to_bits;
    let tiny = f(1e-40);
    check32("add.f32", &[([f(1.5), f(2.0), 0], f(3.5))]);
    check32("add.ftz.f32", &[([tiny, 0, 0], 0)]);
    check32(
        "add.rz.f32",
        &[([f(1.0), f(-1e-9), 0], f(1f32.next_down()))],
    );
    check32(
        "add.rm.f32",
        &[
            ([f(1.0), f(1e-9), 0], f(1.0)),
            ([f(1.0), f(-1.0), 0], f(-0.0)),
        ],
    );
    check32("add.rp.f32", &[([f(1.0), f(1e-9), 0], f(1f32.next_up()))]);
    check32(
        "mul.rz.f32",
        &[
            ([f(0.1), f(0.1), 0], f(0.01)),
            ([f(1e30), f(1e30), 0], f(f32::MAX)),
        ],
    );
    check32(
        "fma.rn.f32",
        &[([f(0.1), f(10.0), f(-1.0)], f(0.1f32.mul_add(10.0, -1.0)))],
    );
    check32(
        "fma.rm.f32",
        &[([f(3.0), f(1.0), f(-1e-9)], f(3f32.next_down()))],
    );
    check32(
        "min.f32",
        &[
            ([f(f32::NAN), f(2.0), 0], f(2.0)),
            ([f(0.0), f(-0.0), 0], f(-0.0)),
        ],
    );
    check32("max.NaN.f32", &[([f(2.0), f(f32::NAN), 0], f(f32::NAN))]);
    check32("copysign.f32", &[([f(-1.0), f(2.0), 0], f(-2.0))]);
    check32("div.rn.f32", &[([f(1.0), f(3.0), 0], f(1.0 / 3.0))]);
    check32("div.rp.f32", &[([f(1.0), f(3.0), 0], f(1.0 / 3.0))]);
    check32("sqrt.rn.f32", &[([f(2.0), 0, 0], f(2f32.sqrt()))]);
    check32(
        "add.sat.f32",
        &[([f(0.7), f(0.7), 0], f(1.0)), ([f(f32::NAN), 0, 0], 0)],
    );
    // Two halves: 1 + 2 and 0.5 + 65504, which stays in range.
    check32("add.f16x2", &[([0x3800_3c00, 0x7bff_4000, 0], 0x7bff_4200)]);
    check32(
        "mul.bf16x2",
        &[([0x4000_3f80, 0x4040_4000, 0], 0x40c0_4000)],
    );
}

#[test]
fn halves_round_once() {
    // 2048 + 1 is a tie in 16 bits and goes to the even 2048; the fused product keeps what an early rounding would lose.
    let body = "cvt.u16.u64 %h1, %d1; cvt.u16.u64 %h2, %d2; cvt.u16.u64 %h3, %d3; fma.rn.f16 %h4, %h1, %h2, %h3;
                cvt.u64.u16 %d0, %h4;";
    assert_eq!(
        compute(body, &[[0x6800, 0x3c00, 0x3c00], [0x3c01, 0x3c01, 0xbc02]]),
        [0x6800, 0x0010]
    );
}

#[test]
fn comparisons() {
    let body = |comparison: &str| {
        format!(
            "mov.b64 %g1, %d1; mov.b64 %g2, %d2; setp.{comparison}.f64 %p1, %g1, %g2; selp.u64 %d0, 1, 0, %p1;"
        )
    };
    let rows = [(1.0, 2.0), (2.0, 2.0), (f64::NAN, 2.0)]
        .map(|(a, b): (f64, f64)| [a.to_bits(), b.to_bits(), 0]);
    for (comparison, want) in [
        ("lt", [1, 0, 0]),
        ("ltu", [1, 0, 1]),
        ("eq", [0, 1, 0]),
        ("equ", [0, 1, 1]),
        ("ne", [1, 0, 0]),
        ("neu", [1, 0, 1]),
        ("geu", [0, 1, 1]),
        ("num", [1, 1, 0]),
        ("nan", [0, 0, 1]),
    ] {
        assert_eq!(compute(&body(comparison), &rows), want, "{comparison}");
    }
    let both =
        "setp.lt.u64 %p1, %d1, 5; setp.gt.and.u64 %p2|%p3, %d1, 1, %p1; selp.u64 %d0, 1, 0, %p2;
                @%p3 add.u64 %d0, %d0, 2;";
    assert_eq!(compute(both, &[[0, 0, 0], [3, 0, 0], [9, 0, 0]]), [2, 1, 0]);
}
