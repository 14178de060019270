#include "backend/recording_cuda.h"

#include "backend/check_cuda.h"
#include "backend/memory_cuda.h"
#include "backend/state_cuda.h"

typedef struct cuda_recording {
    cudaGraphExec_t executable;
    size_t bytes; /* of device memory that it took */
    size_t n_launches;
} cuda_recording_t;

status_t cuda_record_begin(backend_t *backend) {
    queue_stamp(&state_of(backend)->queue); /* of work before the step */
    return check_cuda(cudaStreamBeginCapture(state_of(backend)->queue.stream, cudaStreamCaptureModeThreadLocal),
                      "recording a step");
}

/* Kernel nodes of a graph. */
static status_t count_launches(cudaGraph_t graph, size_t *n_launches) {
    size_t n_nodes = 0, n = 0;
    void *memory;
    TRY(check_cuda(cudaGraphGetNodes(graph, NULL, &n_nodes), "counting a recorded step's launches"));
    TRY(memory_alloc(MEMORY_OTHER, n_nodes, sizeof(cudaGraphNode_t), &memory));
    cudaGraphNode_t *nodes = memory;
    cudaError_t error = cudaGraphGetNodes(graph, nodes, &n_nodes);
    for (size_t i = 0; i < n_nodes && error == cudaSuccess; i++) {
        enum cudaGraphNodeType type;
        error = cudaGraphNodeGetType(nodes[i], &type);
        n += error == cudaSuccess && type == cudaGraphNodeTypeKernel;
    }
    memory_free(memory);
    *n_launches = n;
    return check_cuda(error, "counting a recorded step's launches");
}

status_t cuda_record_end(backend_t *backend, void **recording) {
    queue_stamp(&state_of(backend)->queue); /* the step makes its last ones itself */
    cudaGraph_t graph = NULL;
    size_t free_before = 0, free_after = 0, total;
    void *memory;
    TRY(check_cuda(cudaStreamEndCapture(state_of(backend)->queue.stream, &graph), "recording a step"));
    status_t status = memory_alloc(MEMORY_OTHER, 1, sizeof(cuda_recording_t), &memory);
    if (status != STATUS_OK) {
        cudaGraphDestroy(graph);
        return status;
    }
    cuda_recording_t *created = memory;
    status = count_launches(graph, &created->n_launches);
    if (status != STATUS_OK) {
        cudaGraphDestroy(graph);
        memory_free(created);
        return status;
    }
    cudaMemGetInfo(&free_before, &total);
    cudaError_t error = cudaGraphInstantiateWithFlags(&created->executable, graph, 0);
    cudaMemGetInfo(&free_after, &total);
    cudaGraphDestroy(graph);
    if (error != cudaSuccess) {
        memory_free(created);
        return check_cuda(error, "making a recorded step executable");
    }
    created->bytes = free_before > free_after ? free_before - free_after : 0;
    memory_account(MEMORY_CUDA_GRAPH, created->bytes);
    cuda_note_memory();
    *recording = created;
    return STATUS_OK;
}

size_t cuda_record_n_launches(const void *recording) { return ((const cuda_recording_t *)recording)->n_launches; }

status_t cuda_replay(backend_t *backend, void *recording) {
    const cuda_recording_t *made = recording;
    queue_stamp(&state_of(backend)->queue);
    return check_cuda(cudaGraphLaunch(made->executable, state_of(backend)->queue.stream), "replaying a step");
}

void cuda_record_free(backend_t *backend, void *recording) {
    cuda_recording_t *made = recording;
    (void)backend;
    if (!made) return;
    cudaGraphExecDestroy(made->executable);
    memory_unaccount(MEMORY_CUDA_GRAPH, made->bytes);
    memory_free(made);
}
