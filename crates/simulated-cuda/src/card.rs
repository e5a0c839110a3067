//! What kind of card the devices are, by environment variables: an H100 with little memory unless they say otherwise.

use std::sync::LazyLock;

use crate::status::not_modelled;

/// Bytes of memory.
const MEMORY: u64 = 2 << 30;
/// Bytes that a retained primary context takes, in place of the hundreds of MiB of a real one.
const CONTEXT: u64 = 16 << 20;

/// `CU_DEVICE_ATTRIBUTE_…` numbers with the values of an H100, as far as programs plan their work with them.
const ATTRIBUTES: &[(u32, i32)] = &[
    (1, 1024),       // threads per block
    (2, 1024),       // block x
    (3, 1024),       // block y
    (4, 64),         // block z
    (5, i32::MAX),   // grid x
    (6, 65535),      // grid y
    (7, 65535),      // grid z
    (8, 48 << 10),   // shared memory per block
    (9, 64 << 10),   // constant memory
    (10, 32),        // warp
    (11, i32::MAX),  // pitch
    (12, 65536),     // registers per block
    (13, 1_980_000), // clock, kHz
    (14, 512),       // texture alignment
    (15, 1),         // overlap
    (17, 0),         // execution timeout
    (18, 0),         // integrated
    (19, 1),         // maps host memory
    (20, 0),         // compute mode
    (31, 1),         // concurrent kernels
    (32, 1),         // ECC
    (34, 0),         // PCI device
    (36, 2_619_000), // memory clock, kHz
    (37, 5120),      // memory bus, bits
    (38, 50 << 20),  // L2 cache
    (40, 3),         // copy engines
    (41, 1),         // unified addressing
    (50, 0),         // PCI domain
    (78, 1),         // stream priorities
    (82, 65536),     // registers per multiprocessor
    (83, 0),         // managed memory: not simulated
    (87, 2),         // ratio of single to double precision
    (88, 0),         // pageable memory access
    (95, 0),         // cooperative launch: not simulated
    (102, 0),        // virtual memory management: not simulated
    (106, 32),       // blocks per multiprocessor
    (111, 1024),     // reserved shared memory per block
    (119, 0),        // handle types of pools
    (120, 0),        // cluster launch: not simulated
];

/// The kind of all devices.
#[derive(Debug)]
pub struct Card {
    /// `SIMULATED_CUDA_NAME`.
    pub name: String,
    /// Bytes, `SIMULATED_CUDA_MEMORY`.
    pub memory: u64,
    /// Bytes that a context takes, `SIMULATED_CUDA_CONTEXT`.
    pub context: u64,
    /// The compute capability times ten, `SIMULATED_CUDA_CAPABILITY`.
    pub capability: u32,
    /// Multiprocessors, `SIMULATED_CUDA_MULTIPROCESSORS`.
    multiprocessors: u32,
    /// Whether pools join free pages that are apart, `SIMULATED_CUDA_JOINS=1`.
    pub joins: bool,
}

/// A number from the environment.
pub fn number<T: std::str::FromStr>(variable: &str, default: T) -> T {
    match std::env::var(variable) {
        Err(_) => default,
        Ok(text) => {
            let number = text.parse();
            number.unwrap_or_else(|_| not_modelled(&format!("`{variable}={text}`, no number,")))
        }
    }
}

static CARD: LazyLock<Card> = LazyLock::new(|| Card {
    name: std::env::var("SIMULATED_CUDA_NAME")
        .unwrap_or_else(|_| "Simulated H100 (host memory)".to_owned()),
    memory: number("SIMULATED_CUDA_MEMORY", MEMORY),
    context: number("SIMULATED_CUDA_CONTEXT", CONTEXT),
    capability: number("SIMULATED_CUDA_CAPABILITY", 90),
    multiprocessors: number("SIMULATED_CUDA_MULTIPROCESSORS", 132),
    joins: number("SIMULATED_CUDA_JOINS", 0u8) == 1,
});

impl Card {
    pub fn get() -> &'static Card {
        &CARD
    }

    /// The most shared memory of a block in bytes, after opting in: the table "Technical Specifications per Compute Capability" of the CUDA
    /// programming guide.
    pub fn shared_per_block(&self) -> u32 {
        let kib = match self.capability {
            ..75 => 96,
            75 => 64,
            80 | 87 => 163,
            86 | 89 | 120.. => 99,
            _ => 227,
        };
        kib << 10
    }

    /// The most threads on a multiprocessor at a time, from the same table.
    fn threads_per_multiprocessor(&self) -> i32 {
        match self.capability {
            75 => 1024,
            86 | 87 | 89 | 120.. => 1536,
            _ => 2048,
        }
    }

    /// A `CU_DEVICE_ATTRIBUTE_…`. Those that are not known are 0: not supported.
    pub fn attribute(&self, attribute: u32) -> i32 {
        match attribute {
            16 => self.multiprocessors as i32,
            39 => self.threads_per_multiprocessor(),
            75 => (self.capability / 10) as i32,
            76 => (self.capability % 10) as i32,
            // What a multiprocessor has is a block's and 1 KiB, from 8.0 on.
            81 if self.capability < 80 => self.shared_per_block() as i32,
            81 => (self.shared_per_block() + (1 << 10)) as i32,
            97 => self.shared_per_block() as i32,
            _ => ATTRIBUTES
                .iter()
                .find(|(known, _)| *known == attribute)
                .map_or(0, |(_, value)| *value),
        }
    }
}
