// Runs on the audio thread and hands every block of the microphone's samples over.

class Capture extends AudioWorkletProcessor {
  process([input]) {
    if (input.length) this.port.postMessage(input[0].slice());
    return true;
  }
}

registerProcessor("capture", Capture);
