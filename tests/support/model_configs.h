#ifndef GALVANI_TESTS_SUPPORT_MODEL_CONFIGS_H
#define GALVANI_TESTS_SUPPORT_MODEL_CONFIGS_H

/* text_config of the real model: the fields that it holds, with their values. */
#define REAL_TEXT_CONFIG                                                                                               \
    "{\"model_type\": \"qwen4_exp_text\", \"dtype\": \"bfloat16\", \"vocab_size\": 248320, \"hidden_size\": 2560,"     \
    " \"num_hidden_layers\": 48, \"full_attention_interval\": 4, \"hidden_act\": \"silu\","                            \
    " \"num_attention_heads\": 24, \"num_key_value_heads\": 2, \"head_dim\": 256, \"attention_bias\": false,"          \
    " \"attention_dropout\": 0.0, \"partial_rotary_factor\": 0.25, \"max_position_embeddings\": 262144,"               \
    " \"rms_norm_eps\": 1e-06, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000000,"            \
    " \"partial_rotary_factor\": 0.25, \"mrope_interleaved\": true, \"mrope_section\": [11, 11, 10]},"                 \
    " \"tie_word_embeddings\": false, \"linear_num_key_heads\": 16, \"linear_num_value_heads\": 48,"                   \
    " \"linear_key_head_dim\": 128, \"linear_value_head_dim\": 128, \"linear_conv_kernel_dim\": 4,"                    \
    " \"mamba_ssm_dtype\": \"float32\", \"output_gate_type\": \"sigmoid\", \"num_experts\": 512,"                      \
    " \"num_experts_per_tok\": 10, \"moe_intermediate_size\": 640, \"shared_expert_intermediate_size\": 640,"          \
    " \"output_router_logits\": false, \"router_aux_loss_coef\": 0.001, \"hc_count\": 4, \"hc_lowrank\": 320,"         \
    " \"ple_layer_ids\": [2], \"ple_embed_dim\": 2560, \"ple_conv_kernel_size\": 4, \"ngram_size\": 3,"                \
    " \"heads_per_ngram\": 8, \"ngram_vocab_size_base\": 20000000, \"make_ngram_vocab_size_divisible_by\": 128,"       \
    " \"split_ngram_parts\": 128, \"indexer_n_heads\": 4, \"indexer_kv_heads\": 1, \"indexer_head_dim\": 128,"         \
    " \"indexer_budget\": 2048, \"indexer_compress_ratio\": 4, \"bos_token_id\": 248044, \"eos_token_id\": 248044,"    \
    " \"pad_token_id\": null, \"initializer_range\": 0.02, \"use_cache\": true, \"mtp_num_hidden_layers\": 1}"

#define REAL_CONFIG                                                                                                    \
    "{\"architectures\": [\"Qwen4ExpForConditionalGeneration\"], \"model_type\": \"qwen4_exp\","                       \
    " \"tie_word_embeddings\": false, \"text_config\": " REAL_TEXT_CONFIG "}"

/* Every kind of layer and weight in as few bytes as will do: GDN with PLE, then QSA; T = 1, 2, 4; two KV heads, so that
 * four ranks share them; NVFP4 experts of one block per rank. */
#define SMALL_TEXT_CONFIG                                                                                              \
    "{\"model_type\": \"qwen4_exp_text\", \"vocab_size\": 96, \"hidden_size\": 32, \"num_hidden_layers\": 2,"          \
    " \"layer_types\": [\"linear_attention\", \"full_attention\"], \"hidden_act\": \"silu\","                          \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, \"max_position_embeddings\": 512,"     \
    " \"rms_norm_eps\": 1e-06, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000,"               \
    " \"partial_rotary_factor\": 0.25}, \"linear_num_key_heads\": 4, \"linear_num_value_heads\": 12,"                  \
    " \"linear_key_head_dim\": 8, \"linear_value_head_dim\": 8, \"linear_conv_kernel_dim\": 4,"                        \
    " \"output_gate_type\": \"sigmoid\", \"num_experts\": 12, \"num_experts_per_tok\": 2,"                             \
    " \"moe_intermediate_size\": 64, \"shared_expert_intermediate_size\": 32, \"hc_count\": 2, \"hc_lowrank\": 8,"     \
    " \"ple_layer_ids\": [1], \"ple_embed_dim\": 32, \"ple_conv_kernel_size\": 4, \"ngram_size\": 3,"                  \
    " \"heads_per_ngram\": 2, \"ngram_vocab_size_base\": 50, \"make_ngram_vocab_size_divisible_by\": 16,"              \
    " \"split_ngram_parts\": 4, \"indexer_n_heads\": 2, \"indexer_kv_heads\": 1, \"indexer_head_dim\": 8,"             \
    " \"indexer_budget\": 16, \"indexer_compress_ratio\": 4, \"eos_token_id\": 90}"

#define SMALL_CONFIG "{\"model_type\": \"qwen4_exp\", \"text_config\": " SMALL_TEXT_CONFIG "}"

#endif
