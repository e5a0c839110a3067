//! Control flow, barriers, shuffles, atomics and memory.

use super::{Arguments, Fault, Module, build};

const INDEX: &str =
    "ld.param.u64 %d1, [p0]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d1, %d2;";

/// The values that each of a number of threads stores.
fn run(threads: u32, body: &str) -> Result<Vec<u32>, Fault> {
    let mut out = vec![0u32; threads as usize];
    let kernel = build(1, &format!("{INDEX} {body}")).unwrap();
    Arguments::default()
        .buffer(&mut out)
        .launch(&kernel, 1, threads)?;
    Ok(out)
}

#[test]
fn lanes_part_and_meet_again() {
    let out = run(
        40,
        "mov.u32 %r2, 0; mov.u32 %r3, 0;
         $loop: setp.ge.u32 %p1, %r3, %r1; @%p1 bra $done; add.u32 %r2, %r2, %r3; add.u32 %r3, %r3, 1; bra.uni $loop;
         $done: activemask.b32 %r4; setp.eq.u32 %p2, %r4, -1; @!%p2 bra $partial; add.u32 %r2, %r2, 1000;
         $partial: st.global.u32 [%d3], %r2;",
    )
    .unwrap();
    // The first warp is complete again after the loop; the second never was.
    for (i, value) in out.iter().enumerate() {
        assert_eq!(
            *value as usize,
            i * i.saturating_sub(1) / 2 + if i < 32 { 1000 } else { 0 }
        );
    }
}

#[test]
fn a_barrier_orders_shared_memory() {
    let out = run(
        256,
        ".shared .align 4 .b8 buffer[1024];
         mov.u32 %r5, buffer; shl.b32 %r6, %r1, 2; add.s32 %r7, %r5, %r6; st.shared.u32 [%r7], %r1; bar.sync 0;
         mov.u32 %r8, 128;
         $half: setp.ge.u32 %p1, %r1, %r8; @%p1 bra $skip;
         shl.b32 %r9, %r8, 2; add.s32 %r10, %r7, %r9; ld.shared.u32 %r11, [%r10]; ld.shared.u32 %r12, [%r7];
         add.u32 %r12, %r12, %r11; st.shared.u32 [%r7], %r12;
         $skip: bar.sync 0; shr.u32 %r8, %r8, 1; setp.ne.u32 %p2, %r8, 0; @%p2 bra $half;
         ld.shared.u32 %r13, [buffer]; st.global.u32 [%d3], %r13; ret;",
    )
    .unwrap();
    assert!(out.iter().all(|sum| *sum == 255 * 256 / 2));
}

/// Two kernels use the same array declared outside of them; each block has its own.
#[test]
fn a_shared_array_outside_kernels() {
    let kernel = |name: &str, add: u32| {
        format!(
            ".visible .entry {name}(.param .u64 p0) {{ .reg .b32 %r<19>; .reg .b64 %d<9>;
             .shared .align 4 .b8 own[4]; {INDEX} mov.u32 %r4, %ctaid.x; add.u32 %r4, %r4, {add};
             mov.u32 %r5, outer; shl.b32 %r6, %r1, 2; add.s32 %r7, %r5, %r6; mov.u32 %r8, 9; st.shared.u32 [own], %r8;
             st.shared.u32 [%r7], %r4; bar.sync 0; ld.shared.u32 %r9, [outer+4]; st.global.u32 [%d3], %r9; ret; }}"
        )
    };
    let text = [
        ".version 9.0\n.target sm_90\n.shared .align 8 .b8 outer[16];".to_owned(),
        kernel("a", 100),
        kernel("b", 200),
    ];
    let module = Module::parse(&text.concat()).unwrap();
    for (name, value) in [("a", 100), ("b", 200)] {
        let mut out = [0u32; 4];
        let kernel = module.kernel(name).unwrap().unwrap();
        let arguments = Arguments::default().buffer(&mut out);
        arguments.launch(&kernel, 1, 4).unwrap();
        assert_eq!(out, [value; 4], "{name}");
    }
}

#[test]
fn barriers_that_do_not_match_hang() {
    let fault = run(
        64,
        "setp.lt.u32 %p1, %r1, 7; @%p1 bra $a; bar.sync 1; bra.uni $b; $a: bar.sync 2; $b: ret;",
    );
    assert!(matches!(fault, Err(Fault::Hang(_))));
}

#[test]
fn shuffles_and_votes() {
    let out = run(
        32,
        "shfl.sync.bfly.b32 %r2|%p1, %r1, 5, 31, -1; st.global.u32 [%d3], %r2;",
    )
    .unwrap();
    assert!((0..32).all(|i| out[i] == i as u32 ^ 5));
    let out = run(
        32,
        "shfl.sync.down.b32 %r2, %r1, 3, 31, -1; st.global.u32 [%d3], %r2;",
    )
    .unwrap();
    assert!((0..32).all(|i| out[i] == if i < 29 { i as u32 + 3 } else { i as u32 }));
    let out = run(
        32,
        "shfl.sync.up.b32 %r2, %r1, 1, 0, -1; st.global.u32 [%d3], %r2;",
    )
    .unwrap();
    assert!((0..32).all(|i| out[i] == (i as u32).saturating_sub(1)));
    let out = run(
        32,
        "shfl.sync.idx.b32 %r2, %r1, 2, 0x181f, -1; st.global.u32 [%d3], %r2;",
    )
    .unwrap();
    assert!((0..32).all(|i| out[i] == i as u32 / 8 * 8 + 2));
    let out = run(
        32,
        "setp.lt.u32 %p1, %r1, 4; vote.sync.ballot.b32 %r2, %p1, -1; st.global.u32 [%d3], %r2;",
    )
    .unwrap();
    assert!(out.iter().all(|mask| *mask == 15));
}

#[test]
fn lanes_wait_for_a_shuffle() {
    let out = run(
        32,
        "mov.u32 %r2, %r1; setp.lt.u32 %p1, %r1, 9; @%p1 bra $b; add.u32 %r2, %r2, 100;
         $b: shfl.sync.bfly.b32 %r3, %r2, 31, 31, -1; st.global.u32 [%d3], %r3;",
    )
    .unwrap();
    assert!((0..32).all(|i| out[i] == 31 - i as u32 + if 31 - i < 9 { 0 } else { 100 }));
}

#[test]
fn atomic_operations() {
    let out = run(
        64,
        "atom.global.add.u32 %r2, [%d1], 1; red.global.max.u32 [%d1+4], %r1; ret;",
    )
    .unwrap();
    assert_eq!(out[..2], [64, 63]);
    let out = run(
        3,
        "atom.cas.b32 %r2, [%d1], %r1, 7; atom.global.add.f32 %f1, [%d1+8], 0f3F800000;",
    )
    .unwrap();
    assert_eq!(out, [7, 0, 3f32.to_bits()]);
}

#[test]
fn vectors_and_generic_addresses() {
    let out = run(
        4,
        ".shared .align 16 .b8 all[64]; .local .align 4 .b8 own[8];
         mul.wide.u32 %d4, %r1, 16; mov.u64 %d5, all; cvta.shared.u64 %d6, %d5; add.s64 %d6, %d6, %d4;
         add.u32 %r2, %r1, 10; add.u32 %r3, %r1, 20; st.v4.u32 [%d6], {%r1, %r2, %r3, 5};
         mov.u64 %d7, own; cvta.local.u64 %d8, %d7; st.u32 [%d8+4], %r3; ld.local.u32 %r9, [%d7+4];
         ld.v2.u32 {%r4, %r5}, [%d6+8]; add.u32 %r6, %r4, %r5; add.u32 %r6, %r6, %r9; st.global.u32 [%d3], %r6;",
    )
    .unwrap();
    assert_eq!(out, [45, 47, 49, 51]);
}

#[test]
fn wrong_addresses_are_faults() {
    assert!(matches!(
        run(8, "st.global.u32 [%d3+4], %r1;"),
        Err(Fault::IllegalAddress(_))
    ));
    assert!(matches!(
        run(8, "ld.global.u32 %r1, [16];"),
        Err(Fault::IllegalAddress(16))
    ));
    assert!(matches!(
        run(8, "st.global.u32 [%d3+2], %r1;"),
        Err(Fault::MisalignedAddress(_))
    ));
    assert!(matches!(
        run(8, "ld.shared.u32 %r1, [64];"),
        Err(Fault::IllegalAddress(_))
    ));
    assert!(matches!(run(8, "trap;"), Err(Fault::Assert(_))));
}

#[test]
fn what_is_unknown_is_an_error() {
    for (body, word) in [
        ("frobnicate.u32 %r1, %r2;", "frobnicate"),
        ("add.frob.f32 %f1, %f2, %f3;", "frob"),
        ("bra $nowhere;", "$nowhere"),
        ("add.u32 %r1, %r99, 1;", "%r99"),
        ("add.u32 %r1, %h1, 1;", "%h1"),
        ("add.u32 %r1;", "operands"),
        ("call.uni mystery;", "mystery"),
        ("add.u32 %r1, -;", "sign"),
        ("bfi.b32 %r1;", "five"),
        ("lop3.b32 %r1, 4;", "table"),
    ] {
        let error = build(1, body).unwrap_err();
        assert!(error.contains("entry k") && error.contains(word), "{error}");
    }
    for text in [
        "}",
        ".entry x {",
        ".global .u32 x[2] = {1, 2, 3};",
        ".global .u64 x = nothing;",
        ".global",
    ] {
        assert!(Module::parse(text).is_err(), "{text}");
    }
}

#[test]
fn functions_and_module_variables() {
    let text = ".const .align 4 .u32 table[3] = {5, 6, 0x7}; .global .align 8 .u64 where = table;
        .func (.param .b32 out) twice(.param .b32 in) {
          .reg .b32 %r<3>; ld.param.b32 %r1, [in]; add.u32 %r2, %r1, %r1; st.param.b32 [out+0], %r2; ret; }
        .visible .entry k(.param .u32 count, .param .u64 .ptr .global .align 16 to) {
          .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p;
          mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; mov.u64 %d2, where; ld.global.u64 %d3, [%d2];
          add.s64 %d3, %d3, %d1; ld.const.u32 %r2, [%d3];
          setp.eq.u32 %p, %r1, 1; @%p bra $skip;
          { .param .b32 a; st.param.b32 [a+0], %r2; .param .b32 b; call.uni (b), twice, (a); ld.param.b32 %r2, [b]; }
          $skip: ld.param.u64 %d4, [to]; add.s64 %d4, %d4, %d1; st.global.u32 [%d4], %r2; }";
    let module = Module::parse(text).unwrap();
    assert_eq!(module.entries().collect::<Vec<_>>(), ["k"]);
    assert_eq!(module.global("table").map(|(_, bytes)| bytes), Some(12));
    assert!(module.kernel("twice").unwrap().is_none());
    let kernel = module.kernel("k").unwrap().unwrap();
    assert_eq!(
        kernel.params()[1],
        super::super::Param { offset: 8, size: 8 }
    );
    let mut out = [0u32; 3];
    Arguments::default()
        .value(3u32)
        .buffer(&mut out)
        .launch(&kernel, 1, 3)
        .unwrap();
    assert_eq!(out, [10, 6, 14]);
}

#[test]
fn an_element_of_a_parameter_is_chosen_when_the_kernel_runs() {
    let text = ".visible .entry k(.param .u64 k_param_0, .param .align 8 .b8 k_param_1[32], .param .u32 k_param_2) {
          .reg .b32 %r<9>; .reg .b64 %d<9>;
          mov.u32 %r1, %tid.x; ld.param.u32 %r2, [k_param_2]; add.s32 %r3, %r1, %r2; mul.wide.s32 %d1, %r3, 8;
          mov.b64 %d2, k_param_1; add.s64 %d3, %d2, %d1; ld.param.u64 %d4, [%d3+8];
          ld.param.u64 %d5, [k_param_0]; mul.wide.u32 %d6, %r1, 8; add.s64 %d7, %d5, %d6; st.global.u64 [%d7], %d4; }";
    let kernel = Module::parse(text).unwrap().kernel("k").unwrap().unwrap();
    // Threads read the elements after `first` of a structure between two other parameters.
    let run = |first: i32| {
        let mut out = [0u64; 2];
        let mut arguments = Arguments::default().buffer(&mut out);
        for element in 10u64..14 {
            arguments = arguments.value(element);
        }
        arguments.value(first).launch(&kernel, 1, 2).map(|()| out)
    };
    assert_eq!(run(-1), Ok([10, 11]));
    assert_eq!(run(1), Ok([12, 13]));
    for outside in [2, -2, 1000, -1000, i32::MAX] {
        let result = run(outside);
        assert!(
            matches!(result, Err(Fault::IllegalAddress(_))),
            "{outside}: {result:?}"
        );
    }

    let stores = text.replace("ld.param.u64 %d4, [%d3+8]", "st.param.u64 [%d3+8], %d4");
    let error = Module::parse(&stores).unwrap().kernel("k").unwrap_err();
    assert!(error.contains("%d3 is no parameter"), "{error}");
}
