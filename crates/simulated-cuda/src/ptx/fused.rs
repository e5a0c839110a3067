//! Fused multiply-add over a warp, with the processor's own instruction if it has one.

use super::registers::{Frame, LANES, Slot, Word};
use super::steps::{Step, ternary};

macro_rules! fused {
    ($name:ident, $wide:ident, $t:ident) => {
        /// `d = a × b + c`, rounded once.
        pub fn $name(slots: [Slot; 4]) -> Step {
            #[cfg(target_arch = "x86_64")]
            if std::is_x86_feature_detected!("fma") && std::is_x86_feature_detected!("avx2") {
                return Box::new(move |frame: Frame, mask| {
                    let [a, b, c] = [slots[1], slots[2], slots[3]].map(|slot| lanes(frame, slot));
                    // SAFETY: the processor has these instructions, as just asked.
                    frame.write(slots[0], &unsafe { $wide(&a, &b, &c) }, mask);
                });
            }
            ternary(slots, <$t>::mul_add)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "fma,avx2")]
        fn $wide(a: &[$t; LANES], b: &[$t; LANES], c: &[$t; LANES]) -> [$t; LANES] {
            let mut out = [0.0; LANES];
            for lane in 0..LANES {
                out[lane] = a[lane].mul_add(b[lane], c[lane]);
            }
            out
        }
    };
}
fused!(fma_f32, wide_f32, f32);
fused!(fma_f64, wide_f64, f64);

fn lanes<T: Word>(frame: Frame, slot: Slot) -> [T; LANES] {
    frame.lanes(slot)
}
