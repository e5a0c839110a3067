use super::code::Code;

/// Elements of a block.
pub const BLOCK: usize = 256;
/// Bytes of a whole block: its largest element, and a code for each.
const BYTES: usize = size_of::<f32>() + BLOCK;

/// The number of bytes of so many elements.
pub const fn bytes_of(elements: usize) -> usize {
    elements + size_of::<f32>() * elements.div_ceil(BLOCK)
}

/// The number of elements in so many bytes.
pub const fn elements_of(bytes: usize) -> usize {
    bytes - size_of::<f32>() * bytes.div_ceil(BYTES)
}

impl Code {
    /// Reads elements from `start` on, which begins a block; the shorter slice decides how many.
    pub fn load(self, bytes: &[u8], start: usize, into: &mut [f32]) {
        let blocks = bytes.chunks(BYTES).skip(start / BLOCK);
        for (block, into) in blocks.zip(into.chunks_mut(BLOCK)) {
            let Some((scale, codes)) = block.split_first_chunk() else {
                return;
            };
            let scale = f32::from_le_bytes(*scale);
            let values = self.values();
            for (into, &code) in into.iter_mut().zip(codes) {
                *into = values[usize::from(code)] * scale;
            }
        }
    }

    /// Writes elements from a block's beginning on, each as the nearest number; the shorter slice decides how many. A block with an
    /// element that is not finite becomes NaN, but an infinite second moment counts as the largest finite number.
    pub fn store(self, from: &[f32], bytes: &mut [u8]) {
        self.store_by(from, bytes, |_| 0.5);
    }

    /// The same, with a chance for each element: the part of the way between two numbers from which on it becomes the upper one.
    ///
    /// As in src/optim/cpu/wide.rs, but not by a closure: too large a one is not compiled into the function that enables AVX2.
    pub fn store_by(self, from: &[f32], bytes: &mut [u8], chance: impl Fn(usize) -> f32) {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2")]
            fn wide(code: Code, from: &[f32], bytes: &mut [u8], chance: impl Fn(usize) -> f32) {
                code.write(from, bytes, chance);
            }
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the machine has AVX2, the only feature that the function enables.
                return unsafe { wide(self, from, bytes, chance) };
            }
        }
        self.write(from, bytes, chance);
    }

    #[inline(always)]
    fn write(self, from: &[f32], bytes: &mut [u8], chance: impl Fn(usize) -> f32) {
        let blocks = from.chunks(BLOCK).zip(bytes.chunks_mut(BYTES));
        for (start, (from, block)) in (0..).step_by(BLOCK).zip(blocks) {
            let Some((into, codes)) = block.split_first_chunk_mut() else {
                return;
            };
            let scale = self.scale_of(from);
            *into = scale.to_le_bytes();
            match scale.is_normal() {
                true => self.encode(from, 1. / scale, codes, |i| chance(start + i)),
                false => codes.fill(0),
            }
        }
    }

    /// Returns the element of largest magnitude, the positive one of two; 0 if none is a normal number, and NaN if one is not finite.
    #[inline(always)]
    fn scale_of(self, values: &[f32]) -> f32 {
        // The bits of a magnitude are in the order of magnitudes; the last bit here says that it is positive.
        let key = |value: &f32| value.to_bits() << 1 | (!value.to_bits() >> 31);
        let largest = values.iter().map(key).fold(0, u32::max);
        match f32::from_bits(largest >> 1) {
            // The square of a finite gradient may overflow.
            size if size.is_infinite() && self == Self::Unsigned => f32::MAX,
            size if !size.is_finite() => f32::NAN,
            size if size < f32::MIN_POSITIVE => 0.,
            size if largest & 1 == 1 => size,
            size => -size,
        }
    }
}
