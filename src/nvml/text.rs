use std::ffi::c_char;

/// The text in a buffer that a C library wrote.
pub(crate) fn text(buffer: &[c_char]) -> String {
    let bytes = buffer.iter().map(|&byte| byte as u8);
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A GPU's UUID as NVML writes it, from the bytes that CUDA gives.
pub(crate) fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in bytes.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
